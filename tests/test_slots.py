"""Several slots: each has the baseline, and what is compared ran on the same one."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import pytest

from sweeper.errors import FailureClass
from sweeper.judging.standings import standings
from sweeper.judging.verdict import judge
from sweeper.objective import Objective, sample, trend
from sweeper.planning.agenda import Ledger
from sweeper.planning.plan import make_plan
from sweeper.records import HostFacts, Point, Purpose, Trial, TrialRecord, TrialState
from sweeper.study import Study
from tests.build import make_record
from tests.trusting import Node, measured, next_round, study_of, sweep

SPEED = Objective(metric="output_tok_s")


def play(
    study: Study, slots: Sequence[str], dead: dict[int, str] | None = None
) -> list[TrialRecord]:
    """Run the agenda to its end on slots that work in step; some die before a round."""
    settings = make_plan(study).settings

    def ask(taken: Collection[str]) -> Point | None:
        return next((p for key, (p, _) in settings.items() if key not in taken), None)

    alive = list(slots)
    records: list[TrialRecord] = []
    for turn in range(200):
        alive = [s for s in alive if s != (dead or {}).get(turn)]
        running, seats = next_round(study, records, alive, ask)
        if not running:
            return records
        records += [record_of(trial, seats[trial.number]) for trial in running]
    raise AssertionError("the agenda does not end")


def record_of(trial: Trial, slot: str, tok_s: float = 90.0) -> TrialRecord:
    made = make_record(trial.number, tok_s + len(trial.point))
    return replace(
        made,
        trial=trial,
        host=HostFacts(host="node", slot=slot),
        started_at=f"2026-11-29T{trial.number // 60:02d}:{trial.number % 60:02d}:00+00:00",
    )


def on(records: Sequence[TrialRecord], slot: str) -> list[TrialRecord]:
    return [r for r in records if r.host is not None and r.host.slot == slot]


def is_base(record: TrialRecord) -> bool:
    return not record.trial.point


def test_each_slot_begins_with_the_baseline() -> None:
    records = play(study_of(1, launches=20, confirm=0), ["a", "b", "c"])
    for slot in "abc":
        assert is_base(on(records, slot)[0])


def test_at_most_a_quarter_of_the_budget_is_spent_on_what_slots_are_worth() -> None:
    slots = [f"slot-{i}" for i in range(16)]
    study = study_of(1, launches=20, confirm=0)
    study = replace(study, baseline=replace(study.baseline, every=None))
    records = play(study, slots)
    assert sum(map(is_base, records)) == 5
    assert len(records) == 20


def test_launches_between_two_baselines_are_those_of_one_slot() -> None:
    records = play(study_of(1, launches=30, confirm=0), ["a", "b"])
    for slot in "ab":
        bases = [i for i, r in enumerate(on(records, slot)) if is_base(r)]
        assert bases[:3] == [0, 6, 12]
        assert is_base(on(records, slot)[-1])


def test_a_baseline_that_cannot_work_is_not_tried_on_every_slot() -> None:
    study = study_of(1, launches=30, confirm=0)
    base = Trial(
        study="trust", number=0, purpose=Purpose.BASELINE, point={}, launch=study.baseline_launch()
    )
    refused = replace(
        make_record(0, state=TrialState.INFEASIBLE, kind=FailureClass.OOM), trial=base,
        host=HostFacts(host="node", slot="a"),
    )  # fmt: skip
    ledger = Ledger(study=study, records=[refused], running=(), next_number=1, alive=("a", "b"))
    assert not ledger.lacks_baseline("b")


@pytest.mark.parametrize(("confirm", "sequences"), [(6, 1), (9, 1), (12, 2), (20, 3)])
def test_a_sequence_of_confirmations_runs_on_one_slot(confirm: int, sequences: int) -> None:
    records = play(study_of(1, launches=24 + confirm, confirm=confirm), ["a", "b", "c"])
    fresh = [r for r in records if r.trial.purpose is Purpose.CONFIRM]
    assert len(fresh) == confirm
    used = Counter(r.host.slot for r in fresh if r.host is not None)
    assert len(used) == sequences
    assert max(used.values()) - min(used.values()) <= 1
    for slot in used:
        block = [is_base(r) for r in on(fresh, slot)]
        assert block[0]
        assert block[-1]
        assert sum(block) < len(block)


def test_a_slot_that_dies_leaves_its_share_to_another() -> None:
    study = study_of(1, launches=33, confirm=9)
    whole = play(study, ["a", "b"])
    first = next(i for i, r in enumerate(whole) if r.trial.purpose is Purpose.CONFIRM)
    records = play(study, ["a", "b"], dead={first // 2 + 3: "a"})
    fresh = [r for r in records if r.trial.purpose is Purpose.CONFIRM]
    assert len(fresh) == 9
    assert {r.host.slot for r in fresh if r.host is not None} == {"a", "b"}
    assert is_base(on(fresh, "b")[0])


def at(number: int, slot: str, tok_s: float, *, base: bool = False) -> TrialRecord:
    study = study_of(1)
    points = [p for p, _ in make_plan(study).settings.values()]
    point = {} if base else points[number % len(points)]
    launch = study.baseline_launch() if base else study.launch(point)
    purpose = Purpose.BASELINE if base else Purpose.SEARCH
    trial = Trial(study="trust", number=number, purpose=purpose, point=point, launch=launch)
    made = make_record(number, tok_s)
    return replace(record_of(trial, slot), measurements=made.measurements)


def test_slots_that_differ_are_taken_out_and_are_no_drift() -> None:
    records = [
        at(0, "a", 100.0, base=True), at(1, "b", 95.0, base=True),
        at(2, "a", 110.0), at(3, "b", 104.5),
        at(4, "a", 100.5, base=True), at(5, "b", 95.5, base=True),
    ]  # fmt: skip
    moved = trend(records, SPEED)
    assert moved.uneven
    assert not moved.drifted
    one, two = (s.values[0] for s in standings(records, (SPEED,)) if not s.is_baseline)
    assert one == pytest.approx(two, rel=0.002)


def test_slots_within_the_noise_change_nothing() -> None:
    records = [at(0, "a", 100.0, base=True), at(1, "b", 99.0, base=True), at(2, "b", 110.0)]
    moved = trend(records, SPEED)
    assert not moved.uneven
    (found,) = (s.values[0] for s in standings(records, (SPEED,)) if not s.is_baseline)
    assert found == pytest.approx(110.0)


def test_a_slot_without_a_baseline_is_in_doubt_by_what_the_others_differ() -> None:
    records = [at(0, "a", 100.0, base=True), at(1, "b", 90.0, base=True)]
    moved = trend(records, SPEED)
    assert moved.doubt(sample(at(2, "c", 100.0), SPEED)) == pytest.approx(100 / 90 - 1)
    assert moved.doubt(sample(at(2, "a", 100.0), SPEED)) == 0.0
    assert moved.factor(sample(at(2, "c", 100.0), SPEED)) == 1.0


def test_the_winner_is_compared_with_the_baseline_on_its_own_slot() -> None:
    study = study_of(1, launches=10, confirm=0)
    records = [
        *(at(i, "a", 100.0, base=True) for i in range(4)), at(4, "b", 95.0, base=True),
        at(5, "b", 95.0),
    ]  # fmt: skip
    verdict = judge(records, study)
    assert verdict.ratio is not None
    assert verdict.ratio.mid == pytest.approx(1.0)
    assert not verdict.beats_baseline
    assert "the slots differ" in verdict.sentence


@pytest.mark.parametrize("slots", [(1.0,), (1.0, 1.05), (1.0, 1.05, 0.97, 1.02)])
def test_no_more_is_launched_than_the_budget_allows(slots: tuple[float, ...]) -> None:
    study = study_of(1, launches=30, confirm=9)
    _, records = sweep(study, Node(slots=slots), seed=1)
    assert len(records) == 30


def test_the_played_slots_are_as_unlike_as_they_should_be() -> None:
    trial = at(0, "a", 1.0, base=True).trial
    quiet = Node(slots=(1.0, 1.05), launch_sigma=0.0, request_sigma=0.0)
    speeds = [
        measured(trial, quiet, 1, np.random.default_rng(0), slot).measurements[0].output_tok_s or 0
        for slot in (0, 1)
    ]
    assert speeds[0] / speeds[1] == pytest.approx(1.05)
