"""Which slots stay in service."""

from dataclasses import replace

import pytest

from sweeper.cluster.service import MOST_IN_A_ROW, Service
from sweeper.errors import Failure, FailureClass, Stage
from sweeper.records import TrialRecord, TrialState
from tests.build import make_record

GOOD = make_record()


def service(*slots: str) -> Service:
    made = Service()
    made.add(slots)
    return made


def bad(kind: FailureClass, stage: Stage = Stage.SERVING) -> TrialRecord:
    record = make_record(state=TrialState.FAILED, kind=kind)
    return replace(record, failure=Failure(kind=kind, stage=stage, line="held by vim (pid 7)"))


@pytest.mark.parametrize(
    "record",
    [
        bad(FailureClass.GPU_MEMORY_NOT_FREE, Stage.ARGS),
        replace(GOOD, reason="after the server's end: held by vim (pid 7)"),
    ],
    ids=["held before a start", "not given back"],
)
def test_a_slot_whose_memory_is_held_is_out_at_once_while_there_is_another(
    record: TrialRecord,
) -> None:
    slots = service("a", "b")
    slots.ended("a", record)
    assert "held by vim (pid 7)" in slots.lost["a"]
    assert "b" not in slots.lost


def test_the_last_slot_is_out_only_when_its_memory_stays_held() -> None:
    slots = service("a")
    for _ in range(MOST_IN_A_ROW - 1):
        slots.ended("a", bad(FailureClass.GPU_MEMORY_NOT_FREE, Stage.ARGS))
        assert slots.lost == {}
    slots.ended("a", bad(FailureClass.GPU_MEMORY_NOT_FREE, Stage.ARGS))
    assert "held by vim (pid 7)" in slots.lost["a"]


def test_memory_that_came_back_is_forgotten() -> None:
    slots = service("a")
    for _ in range(5):
        slots.ended("a", bad(FailureClass.GPU_MEMORY_NOT_FREE, Stage.ARGS))
        slots.ended("a", GOOD)
    assert slots.lost == {}


def test_what_a_log_only_suggests_does_not_take_a_slot_out_at_once() -> None:
    slots = service("a", "b")
    slots.ended("a", bad(FailureClass.GPU_MEMORY_NOT_FREE, Stage.LOAD))
    assert slots.lost == {}


@pytest.mark.parametrize("first", ["a", "b"], ids=["before", "after"])
def test_a_slot_that_fails_where_another_does_well_is_out(first: str) -> None:
    slots = service("a", "b")
    if first == "b":
        slots.ended("b", GOOD)
    for _ in range(MOST_IN_A_ROW):
        slots.ended("a", bad(FailureClass.KILLED))
    if first == "a":
        assert slots.lost == {}
        slots.ended("b", GOOD)
    assert slots.lost.keys() == {"a"}
    assert "3 machine faults in a row" in slots.lost["a"]


def test_slots_that_all_fail_stay_in_service() -> None:
    slots = service("a", "b")
    for _ in range(9):
        slots.ended("a", bad(FailureClass.KILLED))
        slots.ended("b", bad(FailureClass.NCCL_INIT))
    assert slots.lost == {}


def test_a_setting_that_cannot_work_is_not_the_slots_fault() -> None:
    slots = service("a", "b")
    slots.ended("b", GOOD)
    for _ in range(9):
        slots.ended("a", make_record(state=TrialState.INFEASIBLE))
    assert slots.lost == {}


def test_a_slot_that_keeps_dying_is_out() -> None:
    slots = service("a")
    for _ in range(MOST_IN_A_ROW):
        slots.died("a", "the actor died")
        assert slots.lost == {}
    slots.died("a", "the actor died")
    assert slots.lost == {"a": "the actor died, 4 times in a row"}


def test_a_trial_between_makes_deaths_no_row() -> None:
    slots = service("a")
    for _ in range(9):
        slots.died("a", "the actor died")
        slots.ended("a", GOOD)
    assert slots.lost == {}
