"""Clients in Python on the benchmark's server: `python -m benchmarks.client_own NAME URL STREAMS`.

Writes the lag of each chunk in ns to stdout, as an array of NumPy, which takes no time that would
be taken for the client's. Each of them parses each chunk's JSON. Nothing but NumPy is imported
before a client is chosen: httpx may be in an environment without the rest.
"""

import asyncio
import json
import sys
import threading
import time
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

PROMPT = "paced"
Lags = NDArray[np.int64]


def run_sweeper(url: str, streams: int) -> Lags:
    """Return the lags of this project's client."""
    from sweeper.bench.jobs import Job
    from sweeper.bench.process import ClientProcess
    from sweeper.bench.workload import Prompt

    prompts = tuple(Prompt(id=str(i), text=PROMPT) for i in range(streams))
    job = Job(
        url=url,
        model="m",
        workload="w",
        prompts=prompts,
        route="completions",
        concurrency=streams,
        flush="no",
    )
    with ClientProcess.start() as client:
        window = client.run(job)
    assert not any(window.faults), window.timings[0].error
    return np.concatenate(
        [
            np.array(timing.chunk_ns)
            + window.origin_ns
            - np.fromstring(timing.text, np.int64, sep=" ")
            for timing in window.timings
        ]
    )


def lag_of(line: str | bytes, arrived_ns: int) -> int | None:
    """Return a chunk's lag in ns; None of a line that holds no chunk."""
    data = line.encode() if isinstance(line, str) else line
    if not data.startswith(b"data: {"):
        return None
    text = json.loads(data[6:])["choices"][0]["text"]
    return arrived_ns - int(text) if text else None


def run_requests(url: str, streams: int) -> Lags:
    """Return the lags of requests with a thread for each stream."""
    import requests

    lags: list[list[int]] = [[] for _ in range(streams)]

    def one(mine: list[int]) -> None:
        body = {"prompt": PROMPT, "stream": True}
        with requests.post(f"{url}/v1/completions", json=body, stream=True, timeout=60) as answer:
            for line in answer.iter_lines():
                lag = lag_of(line, time.monotonic_ns())
                if lag is not None:
                    mine.append(lag)

    threads = [threading.Thread(target=one, args=(mine,)) for mine in lags]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return np.array([lag for mine in lags for lag in mine])


def run_httpx(url: str, streams: int) -> Lags:
    """Return the lags of httpx on asyncio."""
    httpx: Any = import_module("httpx")
    lags: list[int] = []

    async def one(client: Any) -> None:
        body = {"prompt": PROMPT, "stream": True}
        async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                lag = lag_of(line, time.monotonic_ns())
                if lag is not None:
                    lags.append(lag)

    async def run() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=None, limits=limits, trust_env=False) as client:
            await asyncio.gather(*(one(client) for _ in range(streams)))

    asyncio.run(run())
    return np.array(lags)


CLIENTS = {"sweeper": run_sweeper, "requests": run_requests, "httpx": run_httpx}

if __name__ == "__main__":
    name, url, streams = sys.argv[1:4]
    np.save(sys.stdout.buffer, CLIENTS[name](url, int(streams)))
