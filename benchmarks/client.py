"""Compares streaming clients on one machine in one run: `python benchmarks/client.py`.

A server in a process of its own sends `--streams` streams (200), first paced at `--rate` chunks a
second each (100), then as fast as the client takes them. Every chunk holds the time at which it
was written, so that a client's lag is known chunk by chunk. Compared are

    sweeper      the client of `sweeper.bench`, aiohttp on uvloop
    requests     one thread a stream, iter_lines
    httpx        asyncio, aiter_lines; skipped where it is not installed

Each runs in its own process and parses each chunk's JSON; CPU time counts that too. On a machine
that does other work the times are upper bounds; the ratios are what to look at.
"""

import argparse
import asyncio
import importlib.util
import json
import re
import subprocess
import sys
import threading
import time
from typing import Any, cast

import numpy as np
import requests
import uvloop

from sweeper.bench.jobs import Job
from sweeper.bench.process import ClientProcess
from sweeper.bench.workload import Prompt

_END = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'


class StampingStream(asyncio.Protocol):
    """One connection: a request in, a stream of stamped chunks out."""

    def __init__(self) -> None:
        self.buffer = b""
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.transport: asyncio.Transport | None = None
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def pause_writing(self) -> None:
        self.may_write.clear()

    def resume_writing(self) -> None:
        self.may_write.set()

    def connection_lost(self, _: Exception | None) -> None:
        if self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, split, body = self.buffer.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if split and length and len(body) >= int(length[1]):
            asked = re.search(rb"rate=(\d+) chunks=(\d+) start=(\d+)", body)
            assert asked is not None
            self.buffer = b""
            rate, chunks, start_ns = (int(n) for n in asked.groups())
            self.task = asyncio.create_task(self.stream(rate, chunks, start_ns))

    async def stream(self, rate: int, chunks: int, start_ns: int) -> None:
        """Send the chunks; all streams of a run tick together from `start_ns` on."""
        assert self.transport is not None
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for number in range(chunks):
            if rate:
                due_ns = start_ns + number * 1_000_000_000 // rate
                await asyncio.sleep((due_ns - time.monotonic_ns()) / 1e9)
            elif number % 20 == 0:
                await asyncio.sleep(0)
            await self.may_write.wait()
            self.send(
                b'data: {"id":"cmpl-0123456789","object":"text_completion","model":"m","choices":'
                b'[{"index":0,"text":"%d ","finish_reason":null}]}\n\n' % time.monotonic_ns()
            )
        self.send(_END)
        self.transport.write(b"0\r\n\r\n")

    def send(self, data: bytes) -> None:
        """Write one HTTP chunk."""
        assert self.transport is not None
        self.transport.write(b"%x\r\n%s\r\n" % (len(data), data))


async def serve() -> None:
    """Serve until stdin closes; print the port."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(StampingStream, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def figures(lags_ns: list[int], chunks: int, cpu_s: float, wall_s: float) -> dict[str, float]:
    """Return a run's figures: CPU a chunk, lag, and chunks a second."""
    p50, p99 = np.percentile(lags_ns, [50, 99]) / 1e6
    return {
        "cpu_us_per_chunk": cpu_s / chunks * 1e6,
        "cpu_share": cpu_s / wall_s,
        "lag_p50_ms": float(p50),
        "lag_p99_ms": float(p99),
        "chunks_per_s": chunks / wall_s,
    }


def prompt_of(rate: int, chunks: int) -> str:
    """Return the words by which the server knows what to send; it starts in half a second."""
    return f"rate={rate} chunks={chunks} start={time.monotonic_ns() + 500_000_000}"


def run_sweeper(url: str, streams: int, rate: int, chunks: int) -> dict[str, float]:
    """Measure Sweeper's own client."""
    prompts = tuple(Prompt(id=str(i), text=prompt_of(rate, chunks)) for i in range(streams))
    with ClientProcess.start() as client:
        window = client.run(
            Job(
                url=url,
                model="m",
                workload="w",
                prompts=prompts,
                route="completions",
                concurrency=streams,
                flush="no",
            )
        )
    assert not any(window.faults), window.timings[0].error
    lags = [
        arrived + window.origin_ns - int(stamp)
        for timing in window.timings
        for arrived, stamp in zip(timing.chunk_ns, timing.text.split(), strict=True)
    ]
    return figures(lags, len(lags), window.cpu_s, window.wall_s)


def lag_of(line: str | bytes, arrived_ns: int) -> int | None:
    """Return a chunk's lag in ns; None of a line that holds no chunk."""
    data = line.encode() if isinstance(line, str) else line
    if not data.startswith(b"data: {"):
        return None
    text = json.loads(data[6:])["choices"][0]["text"]
    return arrived_ns - int(text) if text else None


def run_requests(url: str, streams: int, rate: int, chunks: int) -> dict[str, float]:
    """Measure requests with a thread for each stream, in this process."""
    lags: list[list[int]] = [[] for _ in range(streams)]
    prompt = prompt_of(rate, chunks)

    def one(mine: list[int]) -> None:
        body = {"prompt": prompt, "stream": True}
        with requests.post(f"{url}/v1/completions", json=body, stream=True, timeout=60) as answer:
            for line in answer.iter_lines():
                lag = lag_of(line, time.monotonic_ns())
                if lag is not None:
                    mine.append(lag)

    threads = [threading.Thread(target=one, args=(mine,)) for mine in lags]
    cpu_s, wall_s = time.process_time(), time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
    flat = [lag for mine in lags for lag in mine]
    return figures(flat, len(flat), cpu_s, wall_s)


def run_httpx(url: str, streams: int, rate: int, chunks: int) -> dict[str, float]:
    """Measure httpx on asyncio, in this process."""
    httpx: Any = importlib.import_module("httpx")
    lags: list[int] = []
    body = {"prompt": prompt_of(rate, chunks), "stream": True}

    async def one(client: Any) -> None:
        async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                lag = lag_of(line, time.monotonic_ns())
                if lag is not None:
                    lags.append(lag)

    async def run() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=None, limits=limits, trust_env=False) as client:
            await asyncio.gather(*(one(client) for _ in range(streams)))

    cpu_s, wall_s = time.process_time(), time.monotonic()
    asyncio.run(run())
    cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
    return figures(lags, len(lags), cpu_s, wall_s)


CLIENTS = {"sweeper": run_sweeper, "requests": run_requests, "httpx": run_httpx}


def in_own_process(name: str, *numbers: object) -> dict[str, float]:
    """Run one client in a fresh process and return its figures."""
    ended = subprocess.run(
        [sys.executable, __file__, "--client", name, *(str(n) for n in numbers)],
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
    )
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def compare(url: str, streams: int, rate: int, seconds: float) -> None:
    """Run all clients, paced and as fast as they go, and print figures and ratios."""
    names = [n for n in CLIENTS if n != "httpx" or importlib.util.find_spec("httpx")]
    for name in CLIENTS.keys() - set(names):
        print(f"{name}: not installed, skipped")
    for title, pace, chunks in (
        (f"{streams} streams at {rate} chunks/s each", rate, int(rate * seconds)),
        (f"{streams} streams as fast as they go", 0, int(150 * seconds)),
    ):
        found = {name: in_own_process(name, url, streams, pace, chunks) for name in names}
        keys = list(found["sweeper"])
        print(f"\n{title}\n{'':<12}" + "".join(f"{key:>18}" for key in keys))
        for name, row in found.items():
            print(f"{name:<12}" + "".join(f"{row[key]:>18.2f}" for key in keys))
        for name in names[1:]:
            ratios = (found[name][key] / max(found["sweeper"][key], 1e-9) for key in keys)
            print(f"{name + '/sweeper':<12}".ljust(12) + "".join(f"{r:>18.2f}" for r in ratios))


def main() -> None:
    """Run the comparison, or one of its processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--client", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())
        return
    if options.client:
        name, url, *numbers = options.client
        print(json.dumps(CLIENTS[name](url, *(int(n) for n in numbers))))
        return
    with subprocess.Popen(
        [sys.executable, __file__, "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        try:
            compare(url, options.streams, options.rate, options.seconds)
        finally:
            server.kill()


if __name__ == "__main__":
    main()
