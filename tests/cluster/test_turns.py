"""Servers of one node start side by side, and are measured one after another."""

import multiprocessing
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from sweeper.cluster.assignment import Status
from sweeper.cluster.trial import run_trial
from sweeper.cluster.turns import Turns
from sweeper.engines.sglang import SGLang
from sweeper.errors import Stage
from sweeper.records import HostFacts, TrialRecord, TrialState, Workload
from sweeper.serving import NoGpus
from tests.cluster.stages import assignment

PATIENCE_S = 60.0


def never() -> None:
    """Find nothing wrong."""


class GivenUp(Exception):
    """The slot is to stop waiting."""


class Watcher:
    """Counts who is inside of what, and notes what must not be."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.starting = 0
        self.measuring = 0
        self.most_starting = 0
        self.broken: list[tuple[int, int]] = []

    def enter(self, starting: int, measuring: int) -> None:
        with self.lock:
            self.starting += starting
            self.measuring += measuring
            self.most_starting = max(self.most_starting, self.starting)
            if self.measuring > 1 or (self.measuring and self.starting):
                self.broken.append((self.starting, self.measuring))


def test_many_start_at_once_and_one_measures_alone(tmp_path: Path) -> None:
    slots, watcher = 4, Watcher()
    together = threading.Barrier(slots)

    def slot(_: int) -> None:
        turns = Turns(never, tmp_path)
        for turn in range(5):
            with turns.starting():
                watcher.enter(1, 0)
                if turn == 0:
                    together.wait(PATIENCE_S)  # nobody gets on before all are inside
                watcher.enter(-1, 0)
            with turns.measuring():
                watcher.enter(0, 1)
                time.sleep(0.001)
                watcher.enter(0, -1)

    with ThreadPoolExecutor(slots) as pool:
        list(pool.map(slot, range(slots)))
    assert watcher.broken == []
    assert watcher.most_starting == slots


def _holder(
    ask: Callable[[], AbstractContextManager[None]],
) -> tuple[threading.Thread, threading.Event, threading.Event]:
    """Return a thread that holds a turn, an event set while it does, and one that ends it."""
    inside, over = threading.Event(), threading.Event()

    def hold() -> None:
        with ask():
            inside.set()
            over.wait(PATIENCE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    return thread, inside, over


def test_who_waits_to_measure_comes_before_who_wants_to_start(tmp_path: Path) -> None:
    looks = threading.Semaphore(0)
    one, one_inside, one_over = _holder(Turns(never, tmp_path).starting)
    assert one_inside.wait(PATIENCE_S)
    two, two_inside, two_over = _holder(Turns(looks.release, tmp_path).measuring)
    assert looks.acquire(timeout=PATIENCE_S)  # it is in the queue now
    three, three_inside, three_over = _holder(Turns(looks.release, tmp_path).starting)
    for _ in range(5):
        assert looks.acquire(timeout=PATIENCE_S)
    assert not three_inside.is_set()  # though a start goes on, and starts may be many
    one_over.set()
    assert two_inside.wait(PATIENCE_S)
    assert not three_inside.is_set()
    two_over.set()
    assert three_inside.wait(PATIENCE_S)
    three_over.set()
    for thread in (one, two, three):
        thread.join(PATIENCE_S)


def _hold_for_ever(kind: str, folder: Path, inside: Event) -> None:
    turns = Turns(never, folder)
    with turns.starting() if kind == "starting" else turns.measuring():
        inside.set()
        time.sleep(PATIENCE_S)


@pytest.mark.parametrize("held", ["starting", "measuring"])
@pytest.mark.parametrize("wanted", ["starting", "measuring"])
def test_a_turn_ends_with_the_process_that_has_it(tmp_path: Path, held: str, wanted: str) -> None:
    context = multiprocessing.get_context("spawn")
    inside = context.Event()
    process = context.Process(target=_hold_for_ever, args=(held, tmp_path, inside))
    process.start()
    assert inside.wait(PATIENCE_S)
    process.kill()
    process.join(PATIENCE_S)
    turns = Turns(never, tmp_path)
    with turns.starting() if wanted == "starting" else turns.measuring():
        pass


@pytest.mark.parametrize("wanted", ["starting", "measuring"])
def test_who_is_given_up_stops_waiting_and_keeps_nobody_waiting(
    tmp_path: Path, wanted: str
) -> None:
    def give_up() -> None:
        raise GivenUp

    thread, inside, over = _holder(Turns(never, tmp_path).measuring)
    assert inside.wait(PATIENCE_S)
    turns = Turns(give_up, tmp_path)
    with pytest.raises(GivenUp), turns.starting() if wanted == "starting" else turns.measuring():
        pytest.fail("it was let in")
    over.set()
    thread.join(PATIENCE_S)
    with Turns(never, tmp_path).starting():
        pass


def test_two_trials_of_a_node_are_measured_one_after_the_other(tmp_path: Path) -> None:
    says: list[tuple[int, Status]] = []

    def run(number: int) -> TrialRecord:
        given = replace(
            assignment("turns", number, tmp_path, None),
            workloads=(Workload(name="single", max_tokens=60, repeats=2, warmup=0),),
            alone=True,
        )
        return run_trial(
            given,
            SGLang(),
            HostFacts(host="here", slot=f"slot-{number}"),
            NoGpus(),
            on_status=lambda status: says.append((number, status)),
        )

    with ThreadPoolExecutor(2) as pool:
        records = list(pool.map(run, (0, 1)))
    assert [record.state for record in records] == [TrialState.COMPLETE] * 2
    assert all(record.phases_s["turn"] >= 0 for record in records)
    # A start may show the stage of serving too, when it has answered the probe.
    measured = [number for number, status in says if status.detail.startswith("single")]
    assert set(measured) == {0, 1}
    assert sum(a != b for a, b in pairwise(measured)) == 1, "the two were measured by turns"
    first = next(i for i, (_, status) in enumerate(says) if status.detail.startswith("single"))
    begun = {number for number, status in says[:first] if status.stage is not Stage.ARGS}
    assert begun == {0, 1}, "the second had not begun to start when the first was measured"
