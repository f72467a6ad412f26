"""{who is killed} x {how far the server had come}: nothing of the server lives on.

What happens to one slot is tried on one Ray, trial after trial: each trial is the next one of the
trial before. What happens to the driver or to Ray is tried with one server in each stage at once.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sweeper.cluster import Assignment, Outcome, connect
from sweeper.engines.sglang import SGLang
from sweeper.errors import FailureClass
from sweeper.records import TrialState
from tests.cluster.stages import (
    GONE_S,
    GONE_STOPPED_S,
    STAGES,
    Family,
    assignment,
    is_in,
    wait_for,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
STUDY = f"matrix-{os.getpid()}"


@dataclass
class Cluster:
    """One Ray with one slot, and the trials given to it."""

    executor: Any
    folder: Path
    family: Family
    given: int = 0

    def hold(self, stage: str | None, stop_s: float = 60.0) -> Assignment:
        """Start a trial and return when it has come to `stage`."""
        (slot,) = self.executor.free_slots()
        self.given += 1
        made = assignment(self.family.study, self.given, self.folder, stage, stop_s=stop_s)
        self.executor.submit(slot, made)
        if stage is not None:
            wait_for(lambda: self._is_held(made, stage), f"a server {stage}")
        return made

    def _is_held(self, made: Assignment, stage: str) -> bool:
        status = self.executor.status().get("slot-0")
        return is_in(stage, self.folder / made.log, status.stage if status else None)

    def outcome(self) -> Outcome:
        end = time.monotonic() + 60
        while not (found := self.executor.wait(0.1)):
            assert time.monotonic() < end, "no outcome"
        return found[0]  # type: ignore[no-any-return]

    def actor(self) -> Any:
        import ray

        names = [n for n in ray.util.list_named_actors() if "slot-0" in n]
        return ray.get_actor(names[-1], namespace="sweeper")

    def worker(self) -> int:
        import ray

        return int(ray.get(self.actor().__ray_call__.remote(lambda _: os.getpid())))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("matrix")
    executor = connect(
        SGLang(), study=STUDY, gpus=1, simulated=True, address=None, folder=str(folder)
    )
    family = Family(STUDY)
    yield Cluster(executor, folder, family)
    executor.close()
    family.wait_gone()


def cancel(cluster: Cluster) -> None:
    cluster.executor.cancel()


def ray_kill(cluster: Cluster) -> None:
    import ray

    ray.kill(cluster.actor())


def worker_sigkill(cluster: Cluster) -> None:
    os.kill(cluster.worker(), signal.SIGKILL)


def worker_sigterm(cluster: Cluster) -> None:
    os.kill(cluster.worker(), signal.SIGTERM)


def worker_stopped_then_ray_kill(cluster: Cluster) -> None:
    import ray

    actor, worker = cluster.actor(), cluster.worker()
    os.kill(worker, signal.SIGSTOP)
    ray.kill(actor)


def supervisor_sigkill(cluster: Cluster) -> None:
    (supervisor,) = cluster.family.supervisors()
    os.kill(supervisor, signal.SIGKILL)


def leader_sigkill(cluster: Cluster) -> None:
    (leader,) = cluster.family.leaders()
    os.kill(leader, signal.SIGKILL)


def all_ignore_sigterm_then_stop(cluster: Cluster) -> None:
    """The grandchild with a session of its own is among them."""
    supervisors = cluster.family.supervisors()
    members = [stat.pid for stat in cluster.family.members() if stat.pid not in supervisors]
    assert len(members) >= 2
    for pid in members:
        os.kill(pid, signal.SIGTERM)
    cluster.executor.cancel()


@dataclass(frozen=True, slots=True)
class Event:
    """What happens, how the trial must end, and in which stages it is tried."""

    what: Callable[[Cluster], None]
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


@pytest.mark.parametrize(
    ("event", "stage"),
    [(event, stage) for event in EVENTS for stage in event.stages],
    ids=lambda value: value if isinstance(value, str) else value.what.__name__,
)
def test_nothing_of_a_server_outlives_what_happens_to_its_slot(
    cluster: Cluster, event: Event, stage: str
) -> None:
    cluster.hold(stage, event.stop_s)
    event.what(cluster)
    cluster.family.wait_gone(event.gone_s)
    outcome = cluster.outcome()
    if event.ends == "cancelled":
        # What was measured before the wish to stop is kept.
        assert outcome.lost is None
        assert outcome.record is None or outcome.record.state is TrialState.COMPLETE
    elif event.ends == "lost":
        assert outcome.lost is not None
    elif stage == "stopping":
        assert outcome.record is not None
        assert outcome.record.state is TrialState.COMPLETE
    else:
        assert outcome.record is not None
        assert outcome.record.failure is not None
        assert outcome.record.failure.kind is FailureClass.KILLED
    if event.ends == "lost":
        # A death in a row would take the slot out of service; a trial between makes it none.
        cluster.hold(None)
        record = cluster.outcome().record
        assert record is not None
        assert record.state is TrialState.COMPLETE, record.failure


@dataclass(slots=True)
class Driver:
    """A driver's process with a server in each stage."""

    process: subprocess.Popen[str]
    raylet: int = 0

    def read(self, word: str) -> str:
        """Return the rest of the first line that begins with `word`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise AssertionError(f"the driver ended with {self.process.wait()} before {word!r}")


def driver_sigint(driver: Driver) -> None:
    driver.process.send_signal(signal.SIGINT)


def driver_sigterm(driver: Driver) -> None:
    driver.process.send_signal(signal.SIGTERM)


def driver_sigkill(driver: Driver) -> None:
    driver.process.send_signal(signal.SIGKILL)


def raylet_sigkill(driver: Driver) -> None:
    os.kill(driver.raylet, signal.SIGKILL)


def ray_shutdown(driver: Driver) -> None:
    assert driver.process.stdin is not None
    driver.process.stdin.write("\n")
    driver.process.stdin.flush()


@pytest.mark.parametrize(
    "event", [driver_sigkill, driver_sigint, driver_sigterm, ray_shutdown, raylet_sigkill]
)
def test_nothing_of_any_server_outlives_what_happens_to_ray_or_its_driver(
    event: Callable[[Driver], None], tmp_path: Path
) -> None:
    family = Family(f"{STUDY}-driver")
    command = [sys.executable, "-m", "tests.cluster.driver", str(tmp_path), family.study, *STAGES]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        driver = Driver(process)
        try:
            driver.raylet = int(driver.read("raylet "))
            driver.read("held")
            assert len(family.leaders()) == len(STAGES)
            begun = time.monotonic()
            event(driver)
            family.wait_gone()
            assert time.monotonic() - begun < GONE_S
            if event is raylet_sigkill:
                assert driver.read("next ") == TrialState.COMPLETE
        finally:
            process.kill()
            family.kill()
