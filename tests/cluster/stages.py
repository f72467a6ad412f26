"""Trials that stay in one stage, and the processes of their servers."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sweeper.cluster import Assignment
from sweeper.errors import Stage
from sweeper.records import Launch, Limits, Workload
from sweeper.serving.supervisor import MARK, ProcessStat, all_processes
from tests.build import make_trial

STAGES = ("importing", "loading", "serving", "stopping")
#: What is promised, in seconds of a `Countdown`.
GONE_S = 2.0
#: A stopped worker is killed by Ray after five seconds.
GONE_STOPPED_S = 6.0
#: The most that counts between two looks. A look takes as long where nothing else runs.
_LOOK_S = 0.05
#: Engine seconds in a real one.
TIME_SCALE = 4.0
#: Engine seconds of a start that stays long in its stage.
_START_S = {"importing": 400.0, "loading": 600.0}


def assignment(
    study: str, number: int, folder: Path, stage: str | None, *, stop_s: float = 60.0
) -> Assignment:
    """Return a trial whose server stays in `stage`; None for one that ends soon.

    The server ignores SIGTERM and SIGINT, and so does a descendant with a session of its own.
    """
    env = {
        "SWEEPER_SIM_START_S": str(_START_S.get(stage or "", 0.0)),
        "SWEEPER_SIM_NOISE": "0",
        "SWEEPER_SIM_CHILDREN": "1",
        "SWEEPER_SIM_TIME_SCALE": f"{TIME_SCALE:g}",
        "SWEEPER_SIM_FAULT": "" if stage is None else "stubborn",
    }
    launch = Launch(
        engine="sglang",
        command=("python", "-m", "sweeper.engines.simulated"),
        model="/models/target",
        gpus=1,
        flags={"tp-size": 1},
        simulated=True,
    )
    return Assignment(
        trial=make_trial(number, study=study, launch=launch),
        workloads=(
            Workload(name="single", max_tokens=40_000 if stage == "serving" else 8, warmup=0),
        ),
        limits=Limits(stop_s=stop_s),
        folder=str(folder),
        log=f"logs/{number:06d}.log",
        time_scale=TIME_SCALE,
        env=tuple(env.items()),
    )


def is_in(stage: str, log: Path, status: Stage | None) -> bool:
    """Tell whether a trial has come to `stage`."""
    text = log.read_text(errors="replace") if log.exists() else ""
    if stage == "importing":
        return "SIMULATED SERVER" in text
    if stage == "loading":
        return "Load weight begin" in text
    return status is (Stage.SERVING if stage == "serving" else Stage.SHUTDOWN)


class Countdown:
    """Seconds in which this machine ran us when we asked for it.

    Who is to end the processes waits for a core as long as we do, so a look that comes late
    counts no more than one that does not.
    """

    def __init__(self, limit_s: float) -> None:
        self.left_s = limit_s
        self._looked_s = time.monotonic()

    def is_over(self) -> bool:
        """Tell whether the time is over; to be asked every few hundredths of a second."""
        now_s = time.monotonic()
        self.left_s -= min(now_s - self._looked_s, _LOOK_S)
        self._looked_s = now_s
        return self.left_s <= 0


@dataclass(frozen=True, slots=True)
class Family:
    """The processes of one study's servers, or of those of one of its slots."""

    study: str
    slot: str = ""

    def members(self) -> list[ProcessStat]:
        """Return those that live, supervisors included."""
        wanted = f"{MARK}=sweeper/{self.study}/".encode()
        found = []
        for stat in all_processes():
            try:
                environ = Path(f"/proc/{stat.pid}/environ").read_bytes()
            except OSError:
                continue
            marks = [entry for entry in environ.split(b"\0") if entry.startswith(wanted)]
            if stat.alive and marks and f"/{self.slot}/".encode() in marks[0] + b"//":
                found.append(stat)
        return found

    def supervisors(self) -> list[int]:
        return [s.pid for s in self.members() if b"supervisor.py" in _command(s.pid)]

    def leaders(self) -> list[int]:
        """Return the first process of each server: it leads the server's session."""
        above = set(self.supervisors())
        return [s.pid for s in self.members() if s.parent in above and _session(s.pid) == s.pid]

    def left_after(self, countdown: "Countdown") -> list[ProcessStat]:
        """Wait until nothing lives; return what still does when the time is over."""
        while left := self.members():
            if countdown.is_over():
                return left
            time.sleep(0.02)
        return []

    def wait_gone(self, limit_s: float = GONE_S) -> None:
        left = self.left_after(Countdown(limit_s))
        assert not left, [(_command(s.pid), s) for s in left]

    def kill(self) -> None:
        """End what a failed test left."""
        for stat in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(stat.pid, signal.SIGKILL)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def wait_for(done: Callable[[], bool], what: str, limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < end, f"waited {limit_s} s for {what}"
        time.sleep(0.02)
