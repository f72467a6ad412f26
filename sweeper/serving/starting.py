"""The wait between a server's process and a ready server: limits, stages, times."""

import time
from collections.abc import Callable

from sweeper.clock import Clock
from sweeper.errors import Failure, FailureClass, LaunchFailed, Stage
from sweeper.records import Limits, ServerFacts
from sweeper.serving.process import ServerProcess, real_limit_s
from sweeper.serving.readiness import Readiness


class Phases:
    """Takes the time of each stage of a start, in engine seconds."""

    def __init__(self, clock: Clock, began_s: float, on_stage: Callable[[Stage], None]) -> None:
        self._clock = clock
        self._began_s = began_s
        self._since_s = began_s
        self._stage: Stage | None = None
        self._on_stage = on_stage
        self._spent_s: dict[str, float] = {}

    def reach(self, stage: Stage) -> bool:
        """Note the stage that holds now; tell whether it is a new one."""
        if stage is self._stage:
            return False
        self._close()
        self._stage = stage
        self._on_stage(stage)
        return True

    def end(self) -> dict[str, float]:
        """Return the phases of a start that is over now."""
        self._close()
        return {"start": self._since_s - self._began_s} | self._spent_s

    def _close(self) -> None:
        now_s = self._clock.now_s()
        if self._stage is not None:
            name = f"start.{self._stage}"
            self._spent_s[name] = self._spent_s.get(name, 0.0) + now_s - self._since_s
            self._since_s = now_s


def wait_until_ready(
    process: ServerProcess,
    readiness: Readiness,
    phases: Phases,
    limits: Limits,
    cancelled: Callable[[], bool],
) -> ServerFacts:
    """Wait for a starting server, watching its process, its log and its answers.

    A start is given up after `limits.start_s`, and after `limits.silence_s` without a new stage,
    a new line of the log or a compiler among its processes: a kernel build of 20 minutes is alive.

    Raises:
        LaunchFailed: It ended, a limit was passed, or its owner gave it up.
    """
    now = time.monotonic()
    start_end = now + real_limit_s(process.clock, limits.start_s)
    silence_s = real_limit_s(process.clock, limits.silence_s)
    silence_end = now + silence_s
    while True:
        progress = process.pump(readiness.wait_s, *readiness.descriptors)
        if phases.reach(process.stage) or progress:
            silence_end = time.monotonic() + silence_s
        if process.exited:
            process.end()
            raise LaunchFailed(process.failure())
        facts = readiness.step()
        if facts is not None:
            process.pump(0)
            if not process.exited:
                if process.stage is not Stage.SERVING:
                    phases.reach(Stage.READY)
                return facts
        if cancelled():
            raise LaunchFailed(
                Failure(
                    kind=FailureClass.KILLED,
                    stage=process.stage,
                    line="given up by its owner before it was ready",
                )
            )
        passed, limit_s = None, limits.start_s
        if time.monotonic() > start_end:
            passed = f"not ready after {limits.start_s:g} s"
        elif time.monotonic() > silence_end:
            if process.compilers:
                silence_end = time.monotonic() + silence_s
                continue
            passed, limit_s = f"no progress for {limits.silence_s:g} s", limits.silence_s
        if passed is not None:
            if readiness.last_answer:
                passed += f" (the last probe, {readiness.last_answer})"
            process.note_stacks()
            process.end()
            raise LaunchFailed(process.failure(passed=passed, limit_s=limit_s))
