"""The scheduler: continuous batching in one task, on absolute deadlines of engine time.

    submit -> waiting --prefill--> running --step, step, ...--> finished
                 |  first come first served; at most max_running_requests, and the KV pool
                 `- a prefill stops the running requests for its time

Each step's end is the last end plus the step's time, never "now" plus it: timers that fire a
millisecond late delay single tokens and never the speed.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sweeper.clock import Clock
from sweeper.engines.simulated import cost
from sweeper.engines.simulated.calibrations import Calibration
from sweeper.engines.simulated.job import Job, PrefixCache
from sweeper.engines.simulated.log import Log
from sweeper.engines.simulated.noise import Drift, accepted

#: Before tokens that a client's clock starts or stops on, the last of the wait is spent awake:
#: timers are only good for a millisecond. Real seconds.
_AWAKE_S = 0.0015


@dataclass(slots=True)
class Counters:
    """What happened since the last flush; `/server_info`, `/metrics` and the log read it.

    Attributes:
        interval_steps: Decode steps since the last decode line.
        interval_tokens: Tokens since then.
        interval_verify: Verify steps since then.
        interval_correct: Accepted draft tokens since then.
        verify: Verify steps in completed intervals.
        correct: Accepted draft tokens in completed intervals.
    """

    interval_steps: int = 0
    interval_tokens: int = 0
    interval_verify: int = 0
    interval_correct: int = 0
    verify: int = 0
    correct: int = 0

    @property
    def accept_length(self) -> float | None:
        """Mean accept length over completed intervals; None before the first."""
        return (self.verify + self.correct) / self.verify if self.verify else None


@dataclass(slots=True)
class Totals:
    """What happened since the start; a flush does not reset it."""

    requests: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    verify_calls: int = 0
    ttft_s: float = 0.0
    e2e_s: float = 0.0
    throughput: float = 0.0
    last_accept_length: float = 0.0
    last_accept_rate: float = 0.0
    aborted: int = 0


@dataclass(slots=True, kw_only=True)
class Scheduler:
    """Runs jobs on a machine that is a cost model.

    Attributes:
        clock: Engine time.
        log: Where prefill and decode lines go.
        cal: The machine.
        setting: The launch.
        speed: Factor on all times of this launch.
        drift: Slow change of the node.
        max_running: Most running requests.
        pool_tokens: Size of the KV pool in tokens.
        max_graph_batch: Largest captured batch; 0 without graphs.
        log_interval: Decode steps between two decode lines.
        cache: The prefix cache.
        slow_until_s: Until when steps take twice as long, after a compile.
        fate: A fault: awaited for each running job before each step; it may never return.
    """

    clock: Clock
    log: Log
    cal: Calibration
    setting: cost.Setting
    speed: float
    drift: Drift
    max_running: int
    pool_tokens: int
    max_graph_batch: int
    log_interval: int
    cache: PrefixCache
    slow_until_s: float = 0.0
    fate: Callable[[Job], Awaitable[None]] | None = None
    waiting: deque[Job] = field(default_factory=deque)
    running: list[Job] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)
    totals: Totals = field(default_factory=Totals)
    tokens_out: int = 0
    awake: asyncio.Event = field(default_factory=asyncio.Event)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _line_s: float = 0.0
    _step_ms: dict[int, float] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        """Tell whether no request is waiting or running."""
        return not self.waiting and not self.running

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self.waiting.append(job)
        self._wake.set()

    def abort(self, rid: str | None = None) -> None:
        """End the job `rid`, or all of them."""
        for job in [*self.waiting, *self.running]:
            if rid is None or job.rid == rid:
                self.totals.aborted += 1
                job.end("abort", self.clock.now_s())
        self._sweep()

    def silence(self) -> None:
        """Answer nothing any more: what waits for the scheduler waits for ever."""
        self.awake.clear()

    def flush(self) -> bool:
        """Empty the cache and the acceptance counters, if idle; tell whether it was."""
        if not self.idle:
            return False
        self.cache.clear()
        self.counters = Counters()
        return True

    async def run(self) -> None:
        """Run jobs until cancelled."""
        self.awake.set()
        self._line_s = end_s = self.clock.now_s()
        while True:
            if self.idle:
                self._wake.clear()
                await self._wake.wait()
                if not self.waiting:  # aborted meanwhile
                    continue
                end_s = max(end_s, self.waiting[0].arrived_s)
            if batch := self._admit():
                end_s += self._prefill_s(batch)
                await self._until(end_s, exact=True)
                self._first_tokens(batch, end_s)
            if self.fate is not None:
                for job in self.running:
                    await self.fate(job)
            if running := list(self.running):
                gains = [accepted(job.chances, next(job.draws)) for job in running]
                last = any(
                    j.produced + g + 1 >= j.limit for j, g in zip(running, gains, strict=True)
                )
                end_s += self._step_s(running)
                await self._until(end_s, exact=last)
                self._decoded(running, gains, end_s)

    async def _until(self, end_s: float, *, exact: bool) -> None:
        """Wait until engine time `end_s`; give others a turn even when it has passed."""
        left = self.clock.real_s(end_s - self.clock.now_s())
        if exact and left > _AWAKE_S:
            await asyncio.sleep(left - _AWAKE_S)
        elif not exact:
            await asyncio.sleep(max(left, 0.0))
            return
        await asyncio.sleep(0)
        while self.clock.now_s() < end_s:  # noqa: ASYNC110 - a timer is too coarse here
            await asyncio.sleep(0)

    def _admit(self) -> list[Job]:
        batch: list[Job] = []
        used = sum(j.prompt_tokens + j.limit for j in self.running)
        while self.waiting and len(self.running) + len(batch) < self.max_running:
            job = self.waiting[0]
            used += job.prompt_tokens + job.limit
            if used > self.pool_tokens and (self.running or batch):
                break
            batch.append(self.waiting.popleft())
            job.cached_tokens = self.cache.match(job.prompt)
        return batch

    def _factor(self) -> float:
        now_s = self.clock.now_s()
        slow = 2.0 if now_s < self.slow_until_s else 1.0
        return self.speed * slow * self.drift.factor(time.time(), self.clock.scale)

    def _prefill_s(self, batch: list[Job]) -> float:
        tokens = sum(j.prompt_tokens - j.cached_tokens for j in batch)
        return cost.prefill_ms(self.cal, self.setting, tokens) * self._factor() / 1000.0

    def _step_s(self, running: list[Job]) -> float:
        size = len(running)
        if size not in self._step_ms:
            self._step_ms[size] = cost.step_ms(
                self.cal, self.setting, size, in_graph=size <= self.max_graph_batch
            )
        requests = sum(j.factor for j in running) / size
        return self._step_ms[size] * requests * self._factor() / 1000.0

    def _first_tokens(self, batch: list[Job], now_s: float) -> None:
        new = sum(j.prompt_tokens - j.cached_tokens for j in batch)
        cached = sum(j.cached_tokens for j in batch)
        rate = new / max(now_s - self._line_s, 1e-9)
        self.log.line(
            f"Prefill batch, #new-seq: {len(batch)}, #new-token: {new}, #cached-token: {cached}, "
            f"token usage: {self._usage():.2f}, #running-req: {len(self.running)}, "
            f"#queue-req: {len(self.waiting)}, #pending-token: 0, cuda graph: False, "
            f"input throughput (token/s): {rate:.2f}",
            rank=0,
        )
        for job in batch:
            if job.finish is not None:  # aborted during its prefill
                continue
            job.started_s = now_s
            self.tokens_out += job.extend(1, now_s)
            self.running.append(job)
        self._sweep()

    def _decoded(self, running: list[Job], gains: list[int], now_s: float) -> None:
        speculating = self.setting.draft is not None
        counters = self.counters
        for job, gain in zip(running, gains, strict=True):
            if job.finish is not None:
                continue
            if speculating:
                job.verify_ct += 1
                job.histogram[gain] += 1
                counters.interval_verify += 1
                counters.interval_correct += gain
            counters.interval_tokens += gain + 1
            self.tokens_out += job.extend(gain + 1, now_s)
        counters.interval_steps += 1
        if counters.interval_steps >= self.log_interval:
            self._decode_line(running, now_s)
        self._sweep()

    def _decode_line(self, running: list[Job], now_s: float) -> None:
        c, totals, spec = self.counters, self.totals, ""
        totals.throughput = c.interval_tokens / max(now_s - self._line_s, 1e-9)
        if c.interval_verify:
            proposed = c.interval_verify * (self.setting.draft_tokens - 1)
            length = (c.interval_verify + c.interval_correct) / c.interval_verify
            rate = c.interval_correct / proposed if proposed else 0.0
            totals.last_accept_length, totals.last_accept_rate = length, rate
            spec = f"accept len: {length:.2f}, accept rate: {rate:.2f}, "
        graph = len(running) <= self.max_graph_batch
        tokens = sum(j.prompt_tokens + j.produced for j in running)
        self.log.line(
            f"Decode batch, #running-req: {len(running)}, #token: {tokens}, "
            f"token usage: {tokens / max(self.pool_tokens, 1):.2f}, {spec}cuda graph: {graph}, "
            f"gen throughput (token/s): {totals.throughput:.2f}, #queue-req: {len(self.waiting)}",
            rank=0,
        )
        self.counters = Counters(
            verify=c.verify + c.interval_verify, correct=c.correct + c.interval_correct
        )
        self._line_s = now_s

    def _usage(self) -> float:
        used = sum(j.prompt_tokens + j.produced for j in self.running)
        return used / max(self.pool_tokens, 1)

    def _sweep(self) -> None:
        """Take finished jobs out and count them."""
        for job in self.running:
            if job.finish is None or job.internal or job.finished_s is None:
                continue
            self.totals.requests += 1
            self.totals.prompt_tokens += job.prompt_tokens
            self.totals.generation_tokens += job.produced
            self.totals.verify_calls += job.verify_ct
            self.totals.ttft_s += (job.started_s or job.finished_s) - job.arrived_s
            self.totals.e2e_s += job.finished_s - job.arrived_s
        self.running = [j for j in self.running if j.finish is None]
        self.waiting = deque(j for j in self.waiting if j.finish is None)
