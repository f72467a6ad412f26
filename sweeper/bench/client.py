"""The streaming client, in its own process: `python -m sweeper.bench.client [--slot N]`.

    stdin:  one job a line (`jobs.py`)
    stdout: {"event": "advance"} while it runs, then {"event": "window"} or {"event": "refused"}

It ends when stdin closes, whatever it is doing, so it cannot outlive its owner.
"""

import argparse
import asyncio
import gc
import json
import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace

import aiohttp
import uvloop

from sweeper.bench.counters import read_counters
from sweeper.bench.jobs import (
    Advance,
    Job,
    Refused,
    Window,
    job_from_json,
    window_to_json,
)
from sweeper.bench.sending import open_session
from sweeper.bench.template import Bodies
from sweeper.bench.window import WindowRun
from sweeper.clock import Clock

#: Real seconds between two flushes of a busy server.
_FLUSH_AGAIN_S = 0.25
_FLUSH_LEAST_S = 5.0
_LINE_BYTES = 1 << 30


class FlushRefused(Refused):
    """The server's cache could not be emptied, so the window would prove nothing."""


async def flush(session: aiohttp.ClientSession, job: Job) -> bool:
    """Empty the server's caches and tell whether that was done.

    Raises:
        FlushRefused: It must be done, and the server is busy, refuses, or does not answer.
    """
    real_s = Clock(job.time_scale).real_s(job.probe_s)
    if job.time_scale > 1:
        real_s = max(real_s, _FLUSH_LEAST_S)
    said, stalled = "", False
    try:
        async with asyncio.timeout(real_s):
            while True:
                async with session.get(job.url.rstrip("/") + "/flush_cache") as response:
                    if response.status == 200:
                        return True
                    text = (await response.content.read(200)).decode("utf-8", "replace")
                    said = f"HTTP {response.status}: {text.strip()}"
                    if response.status != 400:  # 400: requests are pending, which passes
                        break
                await asyncio.sleep(_FLUSH_AGAIN_S)
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        stalled = isinstance(error, TimeoutError) and not said
        said = str(error) or said or "no answer"
    if job.flush == "try":
        return False
    raise FlushRefused(f"GET /flush_cache was refused: {said}", stalled=stalled)


async def run_job(job: Job) -> Window:
    """Run one job.

    Raises:
        FlushRefused: The cache could not be emptied.
        TemplateRefused: The server did not write the prompts in its chat template.
    """
    last: Advance | None = None
    turns = 0

    def tell(advance: Advance) -> None:
        nonlocal last, turns
        turns += 1
        if advance != last or turns % 4 == 0:  # a sign of life each second
            last = advance
            _say({"event": "advance", **asdict(advance)})

    async with open_session(job) as session:
        bodies = Bodies(job, session)
        await bodies.prepare()
        flushed = await flush(session, job) if job.flush != "no" else False
        asks = job.route != "generate"
        before = await read_counters(session, job.url) if asks else None
        gc.collect()
        gc.disable()  # a collection would hold up every stamp
        try:
            window = await WindowRun(job, session, bodies, tell).run()
        finally:
            gc.enable()
            bodies.close()
        window = replace(window, flushed=flushed, chat_template=bodies.chat_template)
        after = await read_counters(session, job.url) if before else None
    if before is None or after is None:
        return window
    during = after - before
    return replace(window, counted_steps=during.verify_steps, counted_tokens=during.decoded)


async def serve() -> None:
    """Run the jobs that come on stdin until it closes."""
    lines = asyncio.StreamReader(limit=_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    _say({"event": "ready"})
    next_line = asyncio.create_task(lines.readline())
    while line := await next_line:
        next_line = asyncio.create_task(lines.readline())
        running = asyncio.create_task(run_job(job_from_json(json.loads(line))))
        await asyncio.wait({running, next_line}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done() and not await next_line:
            running.cancel()
            await asyncio.wait({running})
            return
        try:
            _say({"event": "window", **window_to_json(await running)})
        except Refused as refusal:
            _say({"event": "refused", "reason": str(refusal), "stalled": refusal.stalled})


def stay_aside(slot: int) -> None:
    """Keep to one core, away from the server's busy ones, where there are more than two.

    Args:
        slot: Number of the slot on this machine; each takes another core, from the last down.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 2:
        os.sched_setaffinity(0, {cores[-1 - slot % (len(cores) - 1)]})


def main(argv: list[str] | None = None) -> None:
    """Run the client until stdin closes."""
    parser = argparse.ArgumentParser(prog="python -m sweeper.bench.client")
    parser.add_argument("--slot", type=int, default=0)
    stay_aside(parser.parse_args(argv).slot)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


def _say(event: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
