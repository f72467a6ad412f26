"""A writer killed between any two of its steps: no finished row is lost, none is there twice."""

import multiprocessing
import os
import random
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from sweeper.store import Store
from tests.build import make_record

pytestmark = pytest.mark.slow
STARTS = multiprocessing.get_context("forkserver")
STARTS.set_forkserver_preload(["sweeper.store", "tests.build"])
#: What a store does to the disk, as Python's audit events name it.
STEPS = frozenset({"open", "os.rename", "os.remove", "os.mkdir"})
#: More steps than two writes have.
MOST_STEPS = 60


def write_and_die(folder: str, first: int, at_step: int, said: Connection) -> None:
    """Write trials, each said once it is written, and be killed at a step."""
    store = Store(Path(folder))
    store.create()
    store.lock()
    store.clean()
    left = at_step

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in STEPS and str(arguments[0]).startswith(folder):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    for number in range(first, first + 2):
        store.write(make_record(number))
        said.send(number)


def write_on(folder: str, said: Connection) -> None:
    """Write trials as fast as can be, each said once it is written, until killed."""
    store = Store(Path(folder))
    store.create()
    store.lock()
    store.clean()
    number = store.next_number()
    while True:
        store.write(make_record(number))
        said.send(number)
        number += 1


def heard(said: Connection) -> list[int]:
    """Return all that a dead writer had said."""
    found = []
    try:
        while True:
            found.append(said.recv())
    except EOFError:
        return found


def check(folder: Path, written: list[int]) -> None:
    """All rows that were said are there, once and whole; at most one more was just being told."""
    store = Store(folder)
    records = store.records(requests=True)
    numbers = [record.trial.number for record in records]
    assert store.problems == []
    assert len(set(numbers)) == len(numbers)
    assert set(written) <= set(numbers)
    for record in records:
        assert len(record.requests) == 5
        assert len(record.measurements) == 1
    assert store.next_number() not in numbers


def test_a_writer_killed_at_any_of_its_steps_loses_nothing(tmp_path: Path) -> None:
    written: list[int] = []
    for step in range(MOST_STEPS):
        with Store(tmp_path) as store:
            store.create()
            store.lock()
            first = store.next_number()
        ours, theirs = STARTS.Pipe(duplex=False)
        writer = STARTS.Process(target=write_and_die, args=(str(tmp_path), first, step, theirs))
        writer.start()
        theirs.close()
        written += heard(ours)
        writer.join(60)
        check(tmp_path, written)
        if writer.exitcode == 0:
            assert step > 10, "the steps are not seen"
            break
        assert writer.exitcode == -signal.SIGKILL
    else:
        pytest.fail("a write has more steps than were tried")
    with Store(tmp_path) as store:
        store.lock()
        store.clean()
    assert not list(tmp_path.glob("*/.*.partial"))
    check(tmp_path, written)


def test_a_writer_killed_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    rng = random.Random(0)
    kills = 0
    for run in range(4):
        folder = tmp_path / str(run)
        written: list[int] = []
        for _ in range(5):
            kills += _write_and_kill(folder, rng.uniform(0.0, 0.05), written)
            check(folder, written)
        assert len(written) >= 5
    assert kills == 20


def _write_and_kill(folder: Path, after_s: float, written: list[int]) -> int:
    ours, theirs = STARTS.Pipe(duplex=False)
    writer = STARTS.Process(target=write_on, args=(str(folder), theirs))
    writer.start()
    theirs.close()
    assert ours.poll(60)
    time.sleep(after_s)
    writer.kill()
    written += heard(ours)
    writer.join(60)
    return writer.exitcode == -signal.SIGKILL
