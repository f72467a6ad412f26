"""Kills at random moments of simulated sweeps: each sweep ends, with the rows of one left alone.

The driver is the real command in a process forked from a server that has imported everything, so
that a start costs little. Who is killed, and when, comes from the seed.
"""

import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from sweeper.records import TrialRecord, TrialState
from sweeper.search import main
from sweeper.serving.supervisor import all_processes
from tests.cluster.stages import Family
from tests.sweeping import space_text, store_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: In the environment of a driver's children, servers left out.
TAG = "SWEEPER_TEST_TAG"
#: A setting is given up at its third failure, so it is never made to fail more often.
MOST_FAILURES = 2
#: Sweeps that run at the same time, and the most kills in one.
AT_ONCE, MOST_KILLS = 3, 36
STARTS = multiprocessing.get_context("forkserver")
STARTS.set_forkserver_preload(["sweeper.search"])


def drive(folder: str, tag: str, executor: str) -> None:
    """Be the driver, in a process of its own."""
    os.environ[TAG] = tag
    os.setsid()
    with open(f"{folder}/driver.log", "a") as log:  # noqa: PTH123
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    status = main([f"{folder}/space.yaml", "--runs", f"{folder}/runs", "--executor", executor])
    sys.stdout.flush()
    os._exit(status)


@dataclass(slots=True)
class Torment:
    """One sweep, and whoever kills parts of it."""

    folder: Path
    seed: int
    executor: str = "inline"
    family: Family = field(init=False)
    killed: Counter[str] = field(default_factory=Counter)
    failures: Counter[bytes] = field(default_factory=Counter)
    driver: ForkServerProcess | None = None

    def __post_init__(self) -> None:
        self.family = Family(f"kills-{self.seed}-{os.getpid()}")
        text = space_text(
            self.family.study,
            drop="speculative-*",
            base="{}",
            steps=[1, 2, 3, 4],
            tokens=20,
            launches=60,
            start_s=20,
            children=1,
            more="sampler: random",
        )
        (self.folder / "space.yaml").write_text(text)

    def start(self) -> None:
        self.driver = STARTS.Process(
            target=drive, args=(str(self.folder), self.family.study, self.executor)
        )
        self.driver.start()

    def run(self, kills: int, pause_s: float) -> None:
        """Kill so often, then let the sweep end."""
        rng = random.Random(self.seed)
        self.start()
        while self.killed.total() < kills:
            time.sleep(min(rng.expovariate(1 / pause_s), 6 * pause_s))
            role = rng.choice(["driver", "worker", "supervisor", "server"])
            assert self.driver is not None
            if self.driver.exitcode is not None:
                if self.driver.exitcode == 0:
                    break
                self.start()
            elif self._kill(role):
                self.killed[role] += 1
        for _ in range(4):
            assert self.driver is not None
            self.driver.join(120)
            assert self.driver.exitcode is not None, "the sweep does not end"
            if self.driver.exitcode == 0:
                return
            self.start()
        raise AssertionError((self.folder / "driver.log").read_text()[-3000:])

    def _kill(self, role: str) -> bool:
        assert self.driver is not None
        if role == "driver":
            assert self.driver.pid is not None
            os.kill(self.driver.pid, signal.SIGKILL)
            self.driver.join()
            self.start()
            return True
        setting = self._setting()
        victims = {
            "worker": self._workers,
            "supervisor": self.family.supervisors,
            "server": self.family.leaders,
        }[role]()
        if not victims or setting is None or self.failures[setting] >= MOST_FAILURES:
            return False
        if self._setting() != setting:
            return False
        self.failures[setting] += 1
        with contextlib.suppress(ProcessLookupError):
            os.kill(victims[0], signal.SIGKILL)
        return True

    def _setting(self) -> bytes | None:
        """Return what sets the running server apart from others: its flags but for its ports.

        None also of one that is about to start, which has no flags yet.
        """
        for pid in self.family.leaders():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"--port" in words:
                    return b" ".join(words[: words.index(b"--port")])
        return None

    def _workers(self) -> list[int]:
        """Return the measuring client, or Ray's worker."""
        wanted = b"sweeper.bench.client" if self.executor == "inline" else b"ray::Slot"
        return [pid for pid, command in tagged(self.family.study) if wanted in command]


def tagged(tag: str) -> list[tuple[int, bytes]]:
    """Return pid and command of all living processes that a driver of this tag has started."""
    found = []
    for stat in all_processes():
        with contextlib.suppress(OSError):
            entries = Path(f"/proc/{stat.pid}/environ").read_bytes().split(b"\0")
            if stat.alive and f"{TAG}={tag}".encode() in entries:
                found.append((stat.pid, Path(f"/proc/{stat.pid}/cmdline").read_bytes()))
    return found


Row = tuple[int, int | None, float | None]


def rows_of(folder: Path, study: str) -> dict[str, Row]:
    """Return what each measured setting showed, but for time; each is there once."""
    store = store_of(folder, study)
    records = store.records(requests=True)
    assert store.problems == []
    complete = [r for r in records if r.state is TrialState.COMPLETE]
    assert len({r.trial.launch.key for r in complete}) == len(complete)
    assert all(_is_machines(r) for r in records if r.state is not TrialState.COMPLETE)
    return {
        r.trial.launch.key: (
            len(r.requests),
            r.measurements[0].output_tokens,
            r.measurements[0].accept_length,
        )
        for r in complete
    }


def _is_machines(record: TrialRecord) -> bool:
    return record.state is TrialState.FAILED and record.trial.attempt <= MOST_FAILURES


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    torment = Torment(tmp_path_factory.mktemp("undisturbed"), 999)
    torment.run(0, 0.1)
    rows = rows_of(torment.folder, torment.family.study)
    assert len(rows) == 5
    return rows


@pytest.fixture
def tormented() -> Iterator[Callable[..., Torment]]:
    made: list[Torment] = []

    def begin(folder: Path, seed: int, executor: str = "inline") -> Torment:
        made.append(Torment(folder, seed, executor))
        return made[-1]

    yield begin
    for torment in made:
        end(torment)


def end(torment: Torment) -> None:
    """End what a failed test left."""
    if torment.driver is not None:
        torment.driver.kill()
    torment.family.kill()


def check_end(torment: Torment, undisturbed: dict[str, Row]) -> None:
    rows = rows_of(torment.folder, torment.family.study)
    assert rows == undisturbed
    torment.family.wait_gone()
    end = time.monotonic() + 20
    # A driver that is killed while Ray starts leaves helpers of Ray's own, which hold no GPU.
    while left := [found for found in tagged(torment.family.study) if not is_rays_own(found[1])]:
        assert time.monotonic() < end, left
        time.sleep(0.05)


def is_rays_own(command: bytes) -> bool:
    return command.startswith(b"ray::") or b"/ray/" in command


def torment_sweeps(
    folder: Path,
    seeds: Iterator[int],
    kills: int,
    undisturbed: dict[str, Row],
    tormented: Callable[..., Torment],
) -> Counter[str]:
    """Run sweep after sweep, some at once, until there were so many kills; each ends whole."""
    killed: Counter[str] = Counter()
    given = 0

    def torment(seed: int, most: int) -> Counter[str]:
        own = folder / str(seed)
        own.mkdir()
        one = tormented(own, seed)
        one.run(most, 0.2)
        check_end(one, undisturbed)
        return one.killed

    with ThreadPoolExecutor(AT_ONCE) as threads:
        flying: set[Future[Counter[str]]] = set()
        while killed.total() < kills:
            while len(flying) < AT_ONCE and given < kills:
                most = min(MOST_KILLS, kills - given)
                given += most
                flying.add(threads.submit(torment, next(seeds), most))
            done, flying = wait(flying, return_when=FIRST_COMPLETED)
            for ended in done:
                killed += ended.result()
            # What a sweep was given and had no time for is given to later ones.
            given = killed.total() + MOST_KILLS * len(flying)
    return killed


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Torment, Future[None]]]:
    """A sweep on Ray that is tormented while the others are: it waits for Ray most of the time."""
    torment = Torment(tmp_path_factory.mktemp("ray"), 100, "ray")
    with ThreadPoolExecutor(1) as threads:
        yield torment, threads.submit(torment.run, 10, 1.0)
        end(torment)


def test_sweeps_end_whole_whoever_is_killed(
    tmp_path: Path,
    tormented: Callable[..., Torment],
    undisturbed: dict[str, Row],
    on_ray: tuple[Torment, Future[None]],
) -> None:
    killed = torment_sweeps(tmp_path, itertools.count(), 200, undisturbed, tormented)
    assert killed.total() >= 200
    assert set(killed) == {"driver", "worker", "supervisor", "server"}


def test_a_sweep_on_ray_ends_whole_whoever_is_killed(
    on_ray: tuple[Torment, Future[None]], undisturbed: dict[str, Row]
) -> None:
    torment, ended = on_ray
    ended.result()
    check_end(torment, undisturbed)
    assert torment.killed.total() > 3


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_many_sweeps_end_whole_whoever_is_killed(
    tmp_path: Path, tormented: Callable[..., Torment], undisturbed: dict[str, Row]
) -> None:
    killed = torment_sweeps(tmp_path, itertools.count(1000), 3000, undisturbed, tormented)
    assert killed.total() >= 3000
