"""{who is killed} x {how far the server had come}: nothing of the server lives on.

What happens to one slot is tried on one Ray of several slots, each of which runs its cases one
after the other. What happens to the driver or to Ray is tried on a Ray of its own for each, with
one server in each stage. All of it goes on at once, and the tests look at what came of it.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sweeper.cluster import Outcome, connect
from sweeper.cluster.assignment import Assignment
from sweeper.engines.sglang import SGLang
from sweeper.errors import FailureClass
from sweeper.records import TrialState
from tests.cluster.stages import (
    GONE_S,
    GONE_STOPPED_S,
    STAGES,
    TIME_SCALE,
    Countdown,
    Family,
    assignment,
    is_in,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
STUDY = f"matrix-{os.getpid()}"
SLOTS = 4
#: Real seconds for a stage to come, and for a trial to end, on a machine with much else to do.
PATIENCE_S = 100.0
#: A stage of stopping that is long enough to be seen; engine seconds.
_STOPPING_S = 12.0
#: How often a case is tried whose trial had ended before its event came.
_TRIES = 4


@dataclass(slots=True)
class Held:
    """A slot whose server is in the wanted stage.

    Attributes:
        name: The slot's name.
        family: The processes of its server.
        actor: Its actor.
        worker: The actor's process.
        number: Of the trial that it runs.
    """

    name: str
    family: Family
    actor: Any
    worker: int
    number: int


def cancel(held: Held) -> None:
    held.actor.cancel.remote(held.number)


def ray_kill(held: Held) -> None:
    import ray

    ray.kill(held.actor)


def worker_sigkill(held: Held) -> None:
    os.kill(held.worker, signal.SIGKILL)


def worker_sigterm(held: Held) -> None:
    os.kill(held.worker, signal.SIGTERM)


def worker_stopped_then_ray_kill(held: Held) -> None:
    import ray

    os.kill(held.worker, signal.SIGSTOP)
    ray.kill(held.actor)


def supervisor_sigkill(held: Held) -> None:
    (supervisor,) = held.family.supervisors()
    os.kill(supervisor, signal.SIGKILL)


def leader_sigkill(held: Held) -> None:
    (leader,) = held.family.leaders()
    os.kill(leader, signal.SIGKILL)


def all_ignore_sigterm_then_stop(held: Held) -> None:
    """The grandchild with a session of its own is among them."""
    supervisors = held.family.supervisors()
    members = [stat.pid for stat in held.family.members() if stat.pid not in supervisors]
    assert len(members) >= 2
    for pid in members:
        os.kill(pid, signal.SIGTERM)
    held.actor.cancel.remote(held.number)


@dataclass(frozen=True, slots=True)
class Event:
    """What happens, how the trial must end, and in which stages it is tried."""

    what: Callable[[Held], None]
    ends: str
    gone_s: float = GONE_S
    stop_s: float = 60.0
    stages: tuple[str, ...] = STAGES


EVENTS = [
    Event(cancel, "cancelled", stop_s=1.0),
    Event(ray_kill, "lost"),
    Event(worker_sigkill, "lost"),
    Event(worker_sigterm, "lost"),
    Event(worker_stopped_then_ray_kill, "lost", gone_s=GONE_STOPPED_S, stages=("serving",)),
    Event(supervisor_sigkill, "killed"),
    Event(leader_sigkill, "killed"),
    Event(all_ignore_sigterm_then_stop, "cancelled", stop_s=1.0),
]


@dataclass(frozen=True, slots=True)
class Case:
    """One event in one stage."""

    event: Event
    stage: str

    @property
    def id(self) -> str:
        return f"{self.event.what.__name__}-{self.stage}"

    @property
    def stop_s(self) -> float:
        """Engine seconds that the server is asked politely; the stage itself, in "stopping"."""
        return max(self.event.stop_s, _STOPPING_S if self.stage == "stopping" else 0.0)

    @property
    def gone_s(self) -> float:
        """Seconds of a `Countdown` within which all must be gone, those of asking politely included."""
        polite_s = self.stop_s / TIME_SCALE if self.event.ends == "cancelled" else 0.0
        return self.event.gone_s + polite_s


CASES = [Case(event, stage) for event in EVENTS for stage in event.stages]


@dataclass(slots=True)
class Fate:
    """What came of a case.

    Attributes:
        left: What still lived when nothing should.
        outcome: The trial's.
        came_back: Whether the slot ran another trial into its stage; None if none was given.
        missed: Whether the trial had ended by itself before the event came.
    """

    missed: bool = False
    left: list[object] = field(default_factory=list)
    outcome: Outcome | None = None
    came_back: bool | None = None


def queues() -> list[list[Case]]:
    """Deal the cases out: after each that ends the slot's process comes one that does not.

    So it is seen that the slot comes back, and it never dies so often in a row that it is out.
    """
    deadly = [case for case in CASES if case.event.ends == "lost"]
    others = [case for case in CASES if case.event.ends != "lost"]
    assert len(others) >= len(deadly)
    rows = [[*deadly[i : i + 1], case] for i, case in enumerate(others)]
    return [[case for row in rows[slot::SLOTS] for case in row] for slot in range(SLOTS)]


@dataclass(slots=True)
class Matrix:
    """One Ray with several slots, and what came of the cases so far."""

    executor: Any
    folder: Path
    fates: dict[Case, Fate] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    free: set[str] = field(default_factory=set)
    given: int = 0
    numbers: dict[str, int] = field(default_factory=dict)

    def run(self) -> None:
        """Run all cases; the executor is used by this thread only."""
        self.free = set(self.executor.free_slots())
        names = sorted(self.free)
        assert len(names) == SLOTS
        stories = [self._story(name, own) for name, own in zip(names, queues(), strict=True)]
        while stories:
            self.outcomes |= {o.slot: o for o in self.executor.wait(0.05)}
            self.free = set(self.executor.free_slots())
            stories = [story for story in stories if next(story, 0) is None]

    def _story(self, slot: str, cases: list[Case]) -> Iterator[None]:
        last: Fate | None = None
        for case in cases:
            for _ in range(_TRIES):
                yield from self._into(slot, case)
                if last is not None:
                    last.came_back = True
                fate = last = self.fates[case] = Fate()
                yield from self._happen(slot, case, fate)
                if not fate.missed:
                    break

    def _into(self, slot: str, case: Case) -> Iterator[None]:
        """Give the slot trials until one is in the case's stage."""
        end = time.monotonic() + PATIENCE_S
        made: Assignment | None = None
        while made is None or not is_in(case.stage, self.folder / made.log, self._stage(slot)):
            assert time.monotonic() < end, f"{case.id} is not reached"
            # A stop that was over before a busy machine let us look is asked for again.
            ended = self.outcomes.pop(slot, None)
            assert ended is None or case.stage == "stopping", (case.id, ended)
            if (made is None or ended is not None) and slot in self.free:
                self.given += 1
                self.numbers[slot] = self.given
                made = assignment(STUDY, self.given, self.folder, case.stage, stop_s=case.stop_s)
                self.executor.submit(slot, made)
            elif ended is not None:
                made = None
            yield

    def _happen(self, slot: str, case: Case, fate: Fate) -> Iterator[None]:
        """Let the case's event happen, and write down what came of it."""
        family = Family(STUDY, slot)
        held = self._held(slot, family)
        fate.missed = case.stage == "stopping" and not family.leaders()
        if not fate.missed:
            countdown = Countdown(case.gone_s)
            case.event.what(held)
            while left := family.members():
                if countdown.is_over():
                    fate.left.extend(left)
                    break
                yield
        end = time.monotonic() + PATIENCE_S
        while slot not in self.outcomes:
            assert time.monotonic() < end, f"{case.id} has no outcome"
            yield
        ended = fate.outcome = self.outcomes.pop(slot)
        if case.stage == "stopping" and case.event.ends == "lost":
            fate.missed |= ended.lost is None

    def _stage(self, slot: str) -> Any:
        status = self.executor.status().get(slot)
        return status.stage if status else None

    def _held(self, slot: str, family: Family) -> Held:
        import ray

        names = [n for n in ray.util.list_named_actors() if f" {slot} " in n]
        actor: Any = ray.get_actor(max(names, key=_starts), namespace="sweeper")
        worker: Any = ray.get(actor.__ray_call__.remote(_pid))
        return Held(slot, family, actor, worker, self.numbers[slot])


def _pid(_: object) -> int:
    return os.getpid()


def _starts(name: str) -> int:
    return int(name.rpartition(".")[2])


@pytest.fixture(scope="module")
def fates(
    tmp_path_factory: pytest.TempPathFactory, drivers: dict[str, "Driver"]
) -> Iterator[dict[Case, Fate]]:
    folder = tmp_path_factory.mktemp("matrix")
    executor = connect(
        SGLang(),
        study=STUDY,
        gpus=1,
        simulated=True,
        address=None,
        folder=str(folder),
        slots_per_node=SLOTS,
    )
    matrix = Matrix(executor, folder)
    try:
        matrix.run()
        yield matrix.fates
    finally:
        executor.close()
        Family(STUDY).wait_gone()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_nothing_of_a_server_outlives_what_happens_to_its_slot(
    fates: dict[Case, Fate], case: Case
) -> None:
    fate = fates[case]
    assert fate.left == []
    assert not fate.missed
    outcome = fate.outcome
    assert outcome is not None
    if case.event.ends == "cancelled":
        # What was measured before the wish to stop is kept.
        assert outcome.lost is None
        assert outcome.record is None or outcome.record.state is TrialState.COMPLETE
    elif case.event.ends == "lost":
        assert outcome.lost is not None
        assert fate.came_back
    elif case.stage == "stopping":
        assert outcome.record is not None
        assert outcome.record.state is TrialState.COMPLETE
    else:
        assert outcome.record is not None
        assert outcome.record.failure is not None
        assert outcome.record.failure.kind is FailureClass.KILLED


def driver_sigint(driver: "Driver") -> None:
    driver.process.send_signal(signal.SIGINT)


def driver_sigterm(driver: "Driver") -> None:
    driver.process.send_signal(signal.SIGTERM)


def driver_sigkill(driver: "Driver") -> None:
    driver.process.send_signal(signal.SIGKILL)


def raylet_sigkill(driver: "Driver") -> None:
    os.kill(driver.raylet, signal.SIGKILL)


def ray_shutdown(driver: "Driver") -> None:
    assert driver.process.stdin is not None
    driver.process.stdin.write("\n")
    driver.process.stdin.flush()


ENDS = [driver_sigkill, driver_sigint, driver_sigterm, ray_shutdown, raylet_sigkill]


@dataclass(slots=True)
class Driver:
    """A driver's process with a server in each stage, and what came of it."""

    folder: Path
    process: subprocess.Popen[str]
    family: Family
    raylet: int = 0
    held: int = 0
    left: list[object] = field(default_factory=list)
    after: str = ""
    thread: threading.Thread | None = None

    def run(self, event: Callable[["Driver"], None]) -> None:
        """Let it happen once all servers are in their stages; the body of a thread."""
        self.raylet = int(self.read("raylet "))
        self.read("held")
        self.held = len(self.family.leaders())
        event(self)
        self.left.extend(self.family.left_after(Countdown(GONE_S)))
        if self.left:
            return
        if event is raylet_sigkill:
            self.after = self.read("next ")

    def read(self, word: str) -> str:
        """Return the rest of the first line that begins with `word`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        self.left.append(f"it ended with {self.process.wait()} before {word!r}: {self.errors()}")
        return "0"

    def errors(self) -> str:
        """Return the end of what it said besides."""
        return (self.folder / "errors").read_text(errors="replace")[-3000:]


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Driver]]:
    """Start all drivers; each has its fate in a thread of its own."""
    made: dict[str, Driver] = {}
    for event in ENDS:
        name = event.__name__
        folder, study = tmp_path_factory.mktemp(name), f"{STUDY}-{name}"
        with (folder / "errors").open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.driver", str(folder), study, *STAGES],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        made[name] = driver = Driver(folder, process, Family(study))
        driver.thread = threading.Thread(target=driver.run, args=(event,), daemon=True)
        driver.thread.start()
    try:
        yield made
    finally:
        for driver in made.values():
            driver.process.kill()
            driver.process.wait()
            driver.family.kill()


@pytest.mark.parametrize("event", ENDS, ids=lambda event: event.__name__)
def test_nothing_of_any_server_outlives_what_happens_to_ray_or_its_driver(
    event: Callable[[Driver], None], drivers: dict[str, Driver]
) -> None:
    driver = drivers[event.__name__]
    assert driver.thread is not None
    driver.thread.join(PATIENCE_S)
    assert not driver.thread.is_alive()
    assert driver.left == []
    assert driver.held == len(STAGES)
    if event is raylet_sigkill:
        assert driver.after == TrialState.COMPLETE, driver.errors()
