"""One window of load: streams opened, stamped, watched, and read in the gaps.

    requests --closed or open loop--> one task a stream: stamp and keep the bytes
    ended streams --reader--> timings, a few kilobytes at a time, so that no stamp waits for it
    watch: every quarter second, streams that no longer move are given up

Nothing bounds a request's whole time; what bounds a stream is that it must move.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

import aiohttp

from sweeper.bench.jobs import Advance, Job, Window
from sweeper.bench.sending import Stream, send
from sweeper.bench.streams import Answer, StreamFault, StreamReading
from sweeper.bench.template import Bodies, TemplateRefused
from sweeper.bench.workload import PATHS, arrivals
from sweeper.clock import Clock
from sweeper.records import RequestTiming
from sweeper.redaction import redact_text

_WATCH_S = 0.25
#: Bytes read between two turns of the loop: about a third of a millisecond.
_READ_BYTES = 32_768
#: Real seconds that a limit has at least when engine time runs fast; a busy machine needs them.
_LEAST_REAL_S = 5.0


class WindowRun:
    """Runs one job's window.

    Args:
        job: What is sent.
        session: Where it is sent through.
        bodies: Makes the requests' bodies.
        on_advance: Told how far it is, every quarter second.
    """

    def __init__(
        self,
        job: Job,
        session: aiohttp.ClientSession,
        bodies: Bodies,
        on_advance: Callable[[Advance], None],
    ) -> None:
        self._job = job
        self._session = session
        self._bodies = bodies
        self._on_advance = on_advance
        self._clock = Clock(job.time_scale)
        self._url = job.url.rstrip("/") + PATHS[job.route]
        least_s = self._clock.engine_s(_LEAST_REAL_S) if job.time_scale > 1 else 0.0
        self._limit_ns = int(max(job.progress_s, least_s) * 1e9)
        self._active: list[Stream] = []
        self._ended: asyncio.Queue[Stream | None] = asyncio.Queue()
        self._results: list[tuple[RequestTiming, StreamFault | None, Answer]] = []
        self._sent_all = False
        self._given_up = False
        self._origin_ns = self._moved_ns = 0
        self._stalls = 0
        self._longest_ns = 0
        self._last_good_ns = 0
        self._good = self._counted = self._tokens = 0
        self._steps = self._step_tokens = 0
        self._first_sent_ns: int | None = None

    async def run(self) -> Window:
        """Send everything and return what came."""
        self._origin_ns = self._moved_ns = self._clock.now_ns()
        cpu_s, wall_s = time.process_time(), time.monotonic()
        reader = asyncio.create_task(self._read_ended())
        watch = asyncio.create_task(self._watch())
        try:
            await (self._closed_loop() if self._job.concurrency else self._open_loop())
            cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
            self._ended.put_nowait(None)
            await reader
        finally:
            for task in (reader, watch, *(s.task for s in self._active if s.task)):
                task.cancel()
        self._on_advance(self._advance())
        self._results.sort(key=lambda result: result[0].sent_ns)
        drafted = [answer.drafted_tokens for _, fault, answer in self._results if fault is None]
        return Window(
            timings=tuple(timing for timing, _, _ in self._results),
            faults=tuple(fault for _, fault, _ in self._results),
            drafted_tokens=None if None in drafted else sum(n or 0 for n in drafted) or None,
            origin_ns=self._origin_ns,
            cpu_s=cpu_s,
            wall_s=wall_s,
            given_up=self._given_up,
        )

    async def _closed_loop(self) -> None:
        requests, job = self._requests(), self._job
        streams = job.concurrency or 1

        async def keep_busy(begin_s: float) -> None:
            await self._sleep_until(begin_s)
            for stream in requests:
                await self._follow(stream)

        begins = (job.ramp_s * index / streams for index in range(streams))
        await asyncio.gather(*(keep_busy(begin_s) for begin_s in begins))

    async def _open_loop(self) -> None:
        requests = self._requests()
        following = [asyncio.create_task(self._follow(s)) async for s in self._paced(requests)]
        self._sent_all = True
        await asyncio.gather(*following)

    async def _paced(self, requests: Iterator[Stream]) -> AsyncIterator[Stream]:
        job = self._job
        times: Iterable[float] = (
            arrivals(job.request_rate or 1.0, f"{job.seed}/{job.repeat}", job.ramp_s)
            if job.arrivals_s is None
            else job.arrivals_s
        )
        for at_s in times:
            if job.duration_s is not None and at_s >= job.duration_s:
                return
            await self._sleep_until(at_s)
            stream = next(requests, None)
            if stream is None:
                return
            yield stream

    async def _sleep_until(self, at_s: float) -> None:
        # uvloop's timers have whole milliseconds and may be early by a part of one.
        due_ns = self._origin_ns + int(at_s * 1e9)
        while (left_ns := due_ns - self._clock.now_ns()) > 0:  # noqa: ASYNC110 - it is time itself
            await asyncio.sleep(self._clock.real_s(left_ns / 1e9))

    def _requests(self) -> Iterator[Stream]:
        """Yield pass after pass, until `duration_s` is over; one pass without it."""
        job = self._job
        for repeat in itertools.count(job.repeat):
            for index, prompt in enumerate(job.prompts):
                now_ns = self._clock.now_ns()
                over = job.duration_s is not None and (
                    now_ns - self._origin_ns >= job.duration_s * 1e9
                )
                if over or self._given_up:
                    self._sent_all = True
                    return
                yield Stream(prompt, repeat, index, sent_ns=now_ns, moved_ns=now_ns)
            if job.duration_s is None:
                self._sent_all = True
                return

    async def _follow(self, stream: Stream) -> None:
        """Send one request and see it to its end, whatever that is."""
        try:
            stream.body = await self._bodies.body(stream.prompt, stream.repeat, stream.index)
        except TemplateRefused as refusal:
            fault = StreamFault.STALLED if refusal.stalled else StreamFault.REFUSED
            stream.fail(fault, str(refusal))
            self._ended.put_nowait(stream)
            return
        if self._job.duration_s is not None:
            self._bodies.look_ahead(stream.repeat + 1, stream.index)
        stream.sent_ns = stream.moved_ns = self._clock.now_ns()
        stream.task = asyncio.create_task(
            send(self._session, self._url, stream, self._clock.now_ns)
        )
        self._active.append(stream)
        try:
            await asyncio.wait({stream.task})
        finally:
            self._active.remove(stream)
            self._moved_ns = max(self._moved_ns, stream.moved_ns)
        if not stream.task.cancelled():
            stream.task.result()  # an error that is none of a stream's must not be lost
        self._ended.put_nowait(stream)

    async def _read_ended(self) -> None:
        while (stream := await self._ended.get()) is not None:
            if stream.abandoned:
                continue
            reading, unread = StreamReading(), 0
            for block in stream.blocks:
                reading.take(block)
                unread += len(block)
                if unread > _READ_BYTES:
                    unread = 0
                    await asyncio.sleep(0)
            answer, pieces = reading.end()
            self._note(stream, answer, [stream.stamps[i] - self._origin_ns for i in pieces])

    def _note(self, stream: Stream, answer: Answer, chunk_ns: list[int]) -> None:
        # The server's own words say more than the broken connection that follows them.
        told = stream.fault is StreamFault.TRUNCATED and answer.fault is StreamFault.SERVER
        if stream.fault is None or told:
            stream.fault, stream.error = answer.fault, answer.error
        timing = RequestTiming(
            workload=self._job.workload,
            repeat=stream.repeat,
            prompt_id=stream.prompt.id,
            prompt_kind=stream.prompt.kind,
            sent_ns=stream.sent_ns - self._origin_ns,
            first_ns=chunk_ns[0] if chunk_ns else None,
            last_ns=chunk_ns[-1] if chunk_ns else None,
            chunk_ns=tuple(chunk_ns),
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.output_tokens,
            verify_steps=answer.verify_steps,
            accepted_histogram=answer.accepted_histogram,
            finish=answer.finish,
            error=redact_text(stream.error) if stream.error else None,
            text=answer.text,
            note=answer.note,
        )
        self._results.append((timing, stream.fault, answer))
        if stream.fault is None:
            self._stalls = 0
            self._longest_ns = max(self._longest_ns, stream.moved_ns - stream.sent_ns)
            self._last_good_ns = max(self._last_good_ns, stream.moved_ns)
            self._good += 1
            self._counted += answer.output_tokens is not None
            self._tokens += answer.output_tokens or 0
            for accepted, steps in enumerate(answer.accepted_histogram or ()):
                self._steps += steps
                self._step_tokens += steps * (accepted + 1)
            first = self._first_sent_ns
            self._first_sent_ns = stream.sent_ns if first is None else min(first, stream.sent_ns)
        else:
            self._stalls += stream.fault is StreamFault.STALLED
            self._count_failures()

    def _count_failures(self) -> None:
        failed = sum(fault is not None for _, fault, _ in self._results)
        limit = self._job.max_failed
        all_failed = failed == len(self._results) >= max(5, 2 * (self._job.concurrency or 1))
        silent = self._clock.now_ns() - self._moved_ns > self._limit_ns
        if (limit is not None and failed > limit) or all_failed or (self._stalls > 1 and silent):
            self._given_up = not self._sent_all or self._given_up
            if self._given_up:
                for stream in self._active:
                    stream.abandoned = True
                    self._stop(stream, "the window was given up")

    async def _watch(self) -> None:
        """Give up streams that do not move, and tell how far the window is."""
        while True:
            await asyncio.sleep(_WATCH_S)
            now_ns, limit_s = self._clock.now_ns(), self._limit_ns / 1e9
            self._moved_ns = max([self._moved_ns, *(s.moved_ns for s in self._active)])
            # Behind others a request may wait long for its first chunk; then they must move.
            patience_ns = max(self._limit_ns, 5 * self._longest_ns)
            for stream in self._active:
                moved_ns = stream.moved_ns if stream.blocks else self._moved_ns
                if now_ns - moved_ns > self._limit_ns:
                    self._stop(stream, f"no chunk for {limit_s:g} s")
                elif len(stream.blocks) > 4 * self._job.max_tokens + 1000:
                    self._stop(stream, "it sends far more than was asked for")
                elif (
                    self._sent_all
                    and self._last_good_ns
                    and now_ns - max(self._last_good_ns, stream.sent_ns) > patience_ns
                ):
                    self._stop(stream, "still unfinished long after all others")
            self._on_advance(self._advance())

    def _stop(self, stream: Stream, why: str) -> None:
        stream.fail(StreamFault.STALLED, why)
        if stream.task is not None:
            stream.task.cancel()

    def _advance(self) -> Advance:
        took_ns = self._last_good_ns - (self._first_sent_ns or 0)
        known = self._good > 0 and self._counted == self._good and took_ns > 0
        return Advance(
            done=len(self._results),
            total=len(self._job.prompts) if self._job.duration_s is None else None,
            output_tok_s=self._tokens / took_ns * 1e9 if known else None,
            accept_length=self._step_tokens / self._steps if self._steps else None,
        )
