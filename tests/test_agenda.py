import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sweeper.config import parse_study
from sweeper.errors import FailureClass, StopSweep
from sweeper.planning.agenda import MAX_RETRIES, Ledger, fitting, next_trial
from sweeper.planning.plan import make_plan
from sweeper.records import Limits, Point, Purpose, Trial, TrialRecord, TrialState
from sweeper.store import Store
from sweeper.study import Budget, Study
from tests.build import make_record
from tests.test_config import GOOD


@pytest.fixture
def study() -> Study:
    text = GOOD.replace("launches: 5", "launches: 40")
    return parse_study(text, "space.yaml").resolved(gpus_present=False)


class FirstLeft:
    """Asks for the first setting of the plan that is not taken."""

    def __init__(self, study: Study) -> None:
        self.settings = make_plan(study).settings

    def __call__(self, taken: Collection[str]) -> Point | None:
        return next((p for key, (p, _) in self.settings.items() if key not in taken), None)


def record_of(trial: Trial, state: TrialState, kind: FailureClass) -> TrialRecord:
    return replace(make_record(trial.number, state=state, kind=kind), trial=trial)


def play(
    study: Study,
    state: TrialState = TrialState.COMPLETE,
    kind: FailureClass = FailureClass.OOM,
    records: Sequence[TrialRecord] = (),
) -> list[TrialRecord]:
    """Run the agenda to its end, every trial ending alike."""
    found = list(records)
    ask = FirstLeft(study)
    while True:
        ledger = Ledger(study=study, records=found, running=(), next_number=len(found))
        trial = next_trial(ledger, ask)
        if trial is None:
            return found
        found.append(record_of(trial, state, kind))


def test_the_baseline_comes_first_then_the_known_then_the_sampler(study: Study) -> None:
    purposes = [r.trial.purpose for r in play(study)]
    assert purposes[:2] == [Purpose.BASELINE, Purpose.KNOWN]
    assert set(purposes[2:]) == {Purpose.SEARCH}


def test_no_setting_is_launched_twice_and_all_are_launched(study: Study) -> None:
    keys = [r.trial.launch.key for r in play(study)]
    assert len(keys) == len(set(keys)) == len(make_plan(study).settings) + 1


@pytest.mark.parametrize("kind", list(FailureClass))
def test_no_setting_that_cannot_work_is_launched_twice(study: Study, kind: FailureClass) -> None:
    if kind in (FailureClass.BAD_FLAG, FailureClass.BUILD_MISSING, FailureClass.MODEL_MISSING):
        return
    keys = [r.trial.launch.key for r in play(study, TrialState.INFEASIBLE, kind)]
    assert 1 < len(keys) == len(set(keys)) <= len(make_plan(study).settings) + 1


def test_a_machines_fault_is_retried_at_most_twice(study: Study) -> None:
    small = replace(study, budget=Budget(launches=9))
    records = play(small, TrialState.FAILED, FailureClass.NODE_LOST)
    keys = [r.trial.launch.key for r in records]
    assert [keys.count(key) for key in dict.fromkeys(keys)] == [MAX_RETRIES + 1] * 3
    assert [r.trial.attempt for r in records[:3]] == [0, 1, 2]
    assert [r.trial.retry_of for r in records[:3]] == [None, 0, 0]


@pytest.mark.parametrize("state", [TrialState.COMPLETE, TrialState.INFEASIBLE, TrialState.FAILED])
def test_no_loop_starts_more_servers_than_the_budget(study: Study, state: TrialState) -> None:
    small = replace(study, budget=Budget(launches=4))
    assert len(play(small, state, FailureClass.UNKNOWN)) == 4


def test_the_hours_of_the_budget_end_the_sweep(study: Study) -> None:
    each_s = sum(v for k, v in make_record().phases_s.items() if "." not in k)
    small = replace(study, budget=Budget(launches=40, hours=2.5 * each_s / 3600))
    assert len(play(small)) == 3


def test_a_running_trial_counts_and_its_setting_is_not_given_again(study: Study) -> None:
    running: list[Trial] = []
    ask = FirstLeft(study)
    for number in range(6):
        trial = next_trial(
            Ledger(study=study, records=(), running=running, next_number=number), ask
        )
        assert trial is not None
        running.append(trial)
    assert len({t.launch.key for t in running}) == 6


@pytest.mark.parametrize(
    "kind", [FailureClass.BAD_FLAG, FailureClass.BUILD_MISSING, FailureClass.MODEL_MISSING]
)
def test_a_broken_installation_ends_the_sweep_at_the_second_launch(
    study: Study, kind: FailureClass
) -> None:
    with pytest.raises(StopSweep, match=f"2 launches ended with {kind}"):
        play(study, TrialState.INFEASIBLE, kind)


def test_a_missing_module_of_some_settings_does_not_end_a_sweep_that_works(study: Study) -> None:
    works = play(replace(study, budget=Budget(launches=1)))
    assert len(play(study, TrialState.INFEASIBLE, FailureClass.BUILD_MISSING, works)) > 4


def test_stored_rows_of_the_same_study_all_fit(study: Study) -> None:
    records = play(study)
    assert fitting(records, study) == (records, [])


@pytest.mark.parametrize(
    ("old", "new", "why", "kept"),
    [
        ("[1, 2, 3]", "[1, 2, 3, 4]", "", 13),
        ("values: [1, 2, 3]", "values: [2, 3]", "outside the space", 9),
        ("max_tokens: 9", "max_tokens: 8", "other workloads", 0),
        ("gpus: 1", "gpus: 2", "flags that all launches share", 0),
        ("seed: 0", "seed: 1", "", 13),
    ],
)
def test_a_changed_space_keeps_the_rows_that_still_fit(
    old: str, new: str, why: str, kept: int
) -> None:
    text = GOOD.replace("{name: single}", "{name: single, max_tokens: 9}") + "seed: 0\n"
    text = text.replace("launches: 5", "launches: 40")
    before = parse_study(text, "s").resolved(gpus_present=False)
    after = parse_study(text.replace(old, new), "s").resolved(gpus_present=False)
    assert old in text
    records, left = fitting(play(before), after)
    assert len(records) == kept
    assert why in " ".join(left)
    assert bool(left) == bool(why)


def test_a_broken_installation_of_yesterday_is_tried_again(study: Study) -> None:
    one = play(
        replace(study, budget=Budget(launches=1)), TrialState.INFEASIBLE, FailureClass.BAD_FLAG
    )
    records, left = fitting(one, study)
    assert records == []
    assert "tried again" in left[0]


@pytest.mark.parametrize(
    ("passed_s", "limits", "again"),
    [
        (1800.0, Limits(), False),
        (300.0, Limits(), False),
        (1800.0, Limits(start_s=3600.0), True),
        (300.0, Limits(silence_s=900.0), True),
        (1800.0, Limits(start_s=900.0), False),
        (None, Limits(start_s=3600.0), False),
    ],
)
def test_a_start_that_passed_a_limit_is_tried_again_once_that_is_raised(
    study: Study, passed_s: float | None, limits: Limits, again: bool
) -> None:
    (slow,) = play(
        replace(study, budget=Budget(launches=1)),
        TrialState.INFEASIBLE,
        FailureClass.START_TIMEOUT,
    )
    assert slow.failure is not None
    slow = replace(slow, failure=replace(slow.failure, limit_s=passed_s))
    records, left = fitting([slow], replace(study, limits=limits))
    assert records == ([] if again else [slow])
    assert bool(left) == again


@pytest.mark.parametrize("purpose", ["retry", "confirmation"])
def test_a_stored_setting_is_launched_again_with_its_secrets(purpose: str, tmp_path: Path) -> None:
    text = GOOD.replace("launches: 5", "launches: 9, confirm: 3").replace(
        "gpus: 1\n", "gpus: 1\n  env: {HF_TOKEN: s3cret}\n"
    )
    text = text.replace("slo: [single.ttft_p99_ms < 500]\n", "")
    study = parse_study(text, "space.yaml").resolved(gpus_present=False)
    if purpose == "retry":
        done = play(replace(study, budget=Budget(launches=1)))
        done += play(
            replace(study, budget=Budget(launches=2)),
            TrialState.FAILED,
            FailureClass.NODE_LOST,
            done,
        )[1:]
    else:
        done = play(replace(study, budget=Budget(launches=6)))
    store = Store(tmp_path / "run")
    store.create()
    for record in done:
        store.write(record)
    stored = store.records()
    assert all(r.trial.launch.env["HF_TOKEN"] == "***" for r in stored)
    records, left = fitting(stored, study)
    assert left == []
    again = play(study, records=records)[len(records) :]
    assert {r.trial.purpose for r in again} >= {Purpose.CONFIRM}
    assert any(r.trial.retry_of is not None for r in again) == (purpose == "retry")
    assert {r.trial.launch.env["HF_TOKEN"] for r in again} == {"s3cret"}


def test_what_cannot_run_over_several_nodes_is_refused_before_a_start() -> None:
    text = GOOD.replace("gpus: 1\n", "gpus: 2\n  nodes: 2\n").replace(
        "flags: {", "flags: {tp-size: 2, "
    )
    alone = parse_study(text.replace("  nodes: 2\n", ""), "s").resolved(gpus_present=False)
    wide = parse_study(text, "s").resolved(gpus_present=False)
    launch = wide.launch(dict(next(iter(make_plan(wide).settings.values()))[0]))
    split = replace(launch, env={**launch.env, "SWEEPER_DRAFT_TP": "1"})
    assert alone.refuse(split) is None
    assert "--nnodes is 2" in (wide.refuse(split) or "")


def with_budget(study: Study, *, every: int | None = None, **budget: int) -> Study:
    return replace(
        study,
        budget=Budget(**budget),
        slos=(),
        baseline=replace(study.baseline, every=every),
    )


def test_by_default_the_baseline_is_launched_once(study: Study) -> None:
    assert [r.trial.purpose for r in play(study)].count(Purpose.BASELINE) == 1


@pytest.mark.parametrize("every", [1, 2, 3])
def test_the_baseline_is_measured_again_after_so_many_launches_and_at_the_end(
    study: Study, every: int
) -> None:
    records = play(with_budget(study, every=every, launches=11))
    bases = [r.trial.number for r in records if r.trial.purpose is Purpose.BASELINE]
    assert bases[0] == 0
    assert bases[-1] == len(records) - 1
    assert all(b - a <= every + 1 for a, b in itertools.pairwise(bases))
    assert len(records) <= 11
    keys = [r.trial.launch.key for r in records if r.trial.purpose is not Purpose.BASELINE]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("confirm", [1, 2, 3, 4, 6, 8, 9])
def test_the_reserve_is_spent_on_finalists_and_baseline_in_turn(
    study: Study, confirm: int
) -> None:
    records = play(with_budget(study, launches=8 + confirm, confirm=confirm))
    assert len(records) == 8 + confirm
    purposes = [r.trial.purpose for r in records]
    assert purposes[8:] == [Purpose.CONFIRM] * confirm
    assert Purpose.CONFIRM not in purposes[:8]
    bases = [not r.trial.point for r in records[8:]]
    if confirm > 2:
        assert bases[0]
        assert bases[-1]
        assert not any(all(w) for w in itertools.pairwise(bases))
    assert fitting(records, study)[0] == records


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (TrialState.INFEASIBLE, FailureClass.OOM),
        (TrialState.FAILED, FailureClass.NODE_LOST),
    ],
)
def test_a_larger_budget_goes_on_after_confirmations_that_could_not_be_finished(
    study: Study, state: TrialState, kind: FailureClass
) -> None:
    searched = play(with_budget(study, launches=6))
    stuck = play(with_budget(study, launches=18, confirm=12), state, kind, searched)
    confirmed = [r for r in stuck if r.trial.purpose is Purpose.CONFIRM]
    assert 0 < len(confirmed) < 12
    assert all(r.trial.purpose is not Purpose.CONFIRM for r in stuck[: -len(confirmed)])
    more = play(with_budget(study, launches=40, confirm=12), records=stuck)[len(stuck) :]
    assert more[0].trial.purpose is Purpose.SEARCH
    assert sum(r.trial.purpose is Purpose.CONFIRM for r in more) == 12


@pytest.mark.parametrize("every", [1, 3])
def test_a_baseline_that_cannot_work_is_not_launched_again(study: Study, every: int) -> None:
    plan = with_budget(study, every=every, launches=11)
    first = play(with_budget(study, launches=1), TrialState.INFEASIBLE)
    assert first[0].trial.purpose is Purpose.BASELINE
    purposes = [r.trial.purpose for r in play(plan, records=first)]
    assert purposes.count(Purpose.BASELINE) == 1


def test_confirmations_wait_for_the_last_trial_of_the_search(study: Study) -> None:
    small = with_budget(study, launches=6, confirm=3)
    records = play(small)[:3]
    last = records.pop().trial
    ledger = Ledger(study=small, records=records, running=[last], next_number=3)
    assert next_trial(ledger, FirstLeft(small)) is None


def test_a_finalist_that_breaks_is_replaced_and_the_budget_is_kept(study: Study) -> None:
    small = with_budget(study, launches=12, confirm=4)
    found = play(small)[:8]
    ask = FirstLeft(small)
    while True:
        ledger = Ledger(study=small, records=found, running=(), next_number=len(found))
        trial = next_trial(ledger, ask)
        if trial is None:
            break
        state = TrialState.INFEASIBLE if trial.point else TrialState.COMPLETE
        found.append(record_of(trial, state, FailureClass.OOM))
    assert len(found) <= 12
    broken = [r.trial.launch.key for r in found if r.state is TrialState.INFEASIBLE]
    assert len(broken) == len(set(broken))


def test_a_larger_budget_goes_on_with_the_search_and_confirms_again(study: Study) -> None:
    first = play(with_budget(study, launches=8, confirm=3))
    more = play(with_budget(study, launches=14, confirm=3), records=first)
    assert len(more) == 14
    purposes = [r.trial.purpose for r in more[8:]]
    assert purposes == [Purpose.SEARCH] * 3 + [Purpose.CONFIRM] * 3


def test_finalists_are_the_best_by_what_the_sampler_makes_of_the_search(study: Study) -> None:
    small = with_budget(study, launches=16, confirm=8)
    found = play(small)[:8]
    searched = [r.trial.launch.key for r in found if r.trial.point]
    merits = {key: float(i) for i, key in enumerate(searched)}
    asked: list[int] = []

    def merit(before: int) -> dict[str, float]:
        asked.append(before)
        return merits

    ask = FirstLeft(small)
    while True:
        number = len(found)
        ledger = Ledger(study=small, records=found, running=(), next_number=number, merit=merit)
        trial = next_trial(ledger, ask)
        if trial is None:
            break
        found.append(record_of(trial, TrialState.COMPLETE, FailureClass.OOM))
    confirmed = {r.trial.launch.key for r in found[8:] if r.trial.point}
    assert confirmed == set(searched[-3:])
    # What confirmations show is no news of the search.
    assert set(asked) == {8}


def test_a_node_that_drifts_leaves_the_model_out(study: Study) -> None:
    small = with_budget(study, every=1, launches=20, confirm=8)
    found: list[TrialRecord] = []
    for number, record in enumerate(play(small)[:12]):
        speed = 100.0 * 0.97**number
        found.append(replace(make_record(number, tok_s=speed), trial=record.trial))

    def merit(_: int) -> dict[str, float]:
        raise AssertionError("the model was asked")

    ledger = Ledger(study=small, records=found, running=(), next_number=12, merit=merit)
    trial = next_trial(ledger, FirstLeft(small))
    assert trial is not None
    assert trial.purpose is Purpose.CONFIRM
