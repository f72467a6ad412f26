"""What holds for every sampler: permitted points, no repeats, the same proposals after a replay."""

import random
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from sweeper.errors import FailureClass, UserError
from sweeper.planning.plan import LISTED_POINTS, make_plan
from sweeper.records import Point, RequestTiming, TrialRecord, TrialState
from sweeper.sampler import make_sampler
from sweeper.sampler.replay import encode, finished_trial, suggest
from sweeper.statistics.measurement import summarize
from sweeper.store import Store
from sweeper.study import Study
from tests.sampler.worlds import PLAIN, SAMPLERS, SMALL, keys, record, small_study, sweep

LARGE = PLAIN.replace("[0.7, 0.8, 0.9]", str([round(0.3 + i / 2000, 4) for i in range(1000)]))


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_setting_is_launched_once_and_then_none_is_left(name: str) -> None:
    study = small_study(sampler=name)
    plan = make_plan(study)
    records, sampler = sweep(study, len(plan.settings) + 5, plan=plan)
    launched = [r.trial.launch.key for r in records[1:]]
    assert len(launched) == len(set(launched)) == len(plan.settings)
    assert sampler.ask(keys(records)) is None
    assert sampler.stop_reason() == f"all {len(plan.settings)} settings launched"


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_proposal_is_a_canonical_permitted_point(name: str) -> None:
    study = small_study(sampler=name, seed=3)
    records, _ = sweep(study, 12)
    assert all(study.space.contains(r.trial.point) for r in records[1:])


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_fresh_process_told_the_stored_records_proposes_the_same(name: str) -> None:
    study = small_study(sampler=name, seed=5)
    plan = make_plan(study)
    records, _ = sweep(study, 14, plan=plan)
    for prefix in (1, 2, 5, 9, 13):
        resumed = make_sampler(study, plan)
        for told in records[:prefix]:
            resumed.tell(told)
        assert resumed.ask(keys(records[:prefix])) == records[prefix].trial.point


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_order_in_which_records_are_told_does_not_matter(name: str) -> None:
    study = small_study(sampler=name)
    plan = make_plan(study)
    records, sampler = sweep(study, 10, plan=plan)
    shuffled = random.Random(0).sample(records, len(records))
    other = make_sampler(study, plan)
    for told in [*shuffled, shuffled[0]]:
        other.tell(told)
    assert other.ask(keys(records)) == sampler.ask(keys(records))


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_record_from_the_disk_teaches_what_a_live_one_does(name: str, tmp_path: Path) -> None:
    study = small_study(sampler=name, seed=2)
    plan = make_plan(study)
    live = make_sampler(study, plan)
    records: list[TrialRecord] = []
    with Store(tmp_path / "run") as store:
        store.create()
        for number in range(14):
            point: Point | None = {} if number == 0 else live.ask(keys(records))
            assert point is not None
            state = TrialState.PRUNED if number in (6, 9) else TrialState.COMPLETE
            done = measured(study, number, point, state)
            store.write(done)
            # The loop tells records without their requests.
            live.tell(replace(done, requests=()))
            records.append(done)
        stored = store.records()
    resumed = make_sampler(study, plan)
    for told in stored:
        resumed.tell(told)
    assert resumed.ask(keys(records)) == live.ask(keys(records))
    assert resumed.stop_reason() == live.stop_reason()


def measured(study: Study, number: int, point: Point, state: TrialState) -> TrialRecord:
    """Return a record with requests of two prompt kinds, as a slot would."""
    done = record(study, number, point)
    histograms = {"chat": (60, 30, 10), "code": (20, 30, 50)}
    requests = tuple(
        RequestTiming(
            workload="single",
            repeat=0,
            prompt_id=kind,
            prompt_kind=kind,
            sent_ns=0,
            first_ns=10**8,
            last_ns=5 * 10**9,
            output_tokens=400,
            verify_steps=100 if point else None,
            accepted_histogram=histogram if point else None,
        )
        for kind, histogram in histograms.items()
    )
    kinds = summarize(requests, workload=study.workloads[0], gpus=1).accepted_by_kind
    assert kinds == (histograms if point else None)
    first, *others = done.measurements
    return replace(
        done,
        state=state,
        requests=requests,
        measurements=(replace(first, accepted_by_kind=kinds), *others),
        reason="slower than the best one" if state is TrialState.PRUNED else None,
    )


@pytest.mark.parametrize("name", SAMPLERS)
def test_several_slots_are_given_different_settings(name: str) -> None:
    study = small_study(sampler=name)
    records, sampler = sweep(study, 4)
    taken = set(keys(records))
    for _ in range(8):
        point = sampler.ask(taken)
        assert point is not None
        key = study.launch(point).key
        assert key not in taken
        taken.add(key)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (TrialState.INFEASIBLE, FailureClass.OOM),
        (TrialState.FAILED, FailureClass.NODE_LOST),
        (TrialState.PRUNED, FailureClass.UNKNOWN),
    ],
)
def test_a_sweep_in_which_nothing_is_measured_goes_on(
    name: str, state: TrialState, kind: FailureClass
) -> None:
    study = small_study(sampler=name)

    def broken(number: int, point: Point) -> TrialRecord:
        return record(study, number, point, state=state, kind=kind)

    records, sampler = sweep(study, 8, tell=broken)
    assert len(records) == 8
    assert sampler.ask(keys(records)) is not None


@pytest.mark.parametrize("name", ["auto", "tpe", "nsga2", "random"])
def test_two_objectives_and_a_limit_are_taken(name: str) -> None:
    text = SMALL.replace(
        "objectives: [",
        "slo: [ttft_p99_ms < 500]\nobjectives: [{minimize: tpot_p50_ms}, ",
    ).replace("tpot_p50_ms", "output_tok_s_per_gpu")
    records, _ = sweep(small_study(text, sampler=name), 10)
    assert len(records) == 10


def test_a_record_outside_the_space_is_left_out() -> None:
    study = small_study(sampler="tpe")
    wider = small_study(SMALL.replace("[1, 2, 3, 4]", "[1, 2, 3, 4, 5]"))
    sampler = make_sampler(study, make_plan(study))
    sampler.tell(record(wider, 0, wider.space.canonical({"steps": 5})))
    assert sampler.ask(()) is not None


def test_a_choice_added_to_the_space_goes_on_with_the_old_records() -> None:
    old = small_study(sampler="tpe")
    records, _ = sweep(old, 14)
    new = small_study(SMALL.replace("[1, 2, 3, 4]", "[1, 2, 3, 4, 5]"), sampler="tpe")
    sampler = make_sampler(new, make_plan(new))
    for told in records:
        sampler.tell(told)
    assert sampler.ask(keys(records)) is not None


def test_a_space_too_large_to_list_is_searched_by_its_parameters() -> None:
    study = small_study(LARGE.replace("[1024, 2048, 4096, 16384]", str(list(range(64, 1600, 64)))))
    plan = make_plan(study)
    assert not plan.complete
    assert len(plan.settings) <= LISTED_POINTS
    sampler = make_sampler(study, plan)
    first = sampler.ask(())
    assert first is not None
    sampler.tell(record(study, 0, first))
    assert sampler.ask({study.launch(first).key}) not in (None, first)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_space_too_large_to_list_that_forbids_nearly_all_comes_to_an_end(name: str) -> None:
    many = [*range(1000)]
    text = PLAIN[: PLAIN.index("parameters:")] + (
        f"parameters: {{a: {{env: A, values: {many}}}, b: {{env: B, values: {many}}}, "
        f"c: {{env: C, values: {many}}}}}\nconstraints: [a + b + c == 0]\n"
    )
    study = small_study(text + PLAIN[PLAIN.index("workloads:") :], sampler=name)
    plan = make_plan(study)
    assert not plan.complete
    (only,) = plan.settings
    sampler = make_sampler(study, plan)
    assert sampler.ask(()) == {"a": 0, "b": 0, "c": 0}
    assert sampler.ask({only}) is None


def test_a_speculation_that_can_accept_nothing_is_searched() -> None:
    text = PLAIN.replace("flags: {}", "flags: {speculative-algorithm: NGRAM}")
    study = small_study(
        text.replace(
            "parameters:\n",
            "parameters:\n  tokens: {flag: speculative-num-draft-tokens, values: [1]}\n",
        )
    )
    records, sampler = sweep(study, 8)
    assert len(records) == 8
    assert sampler.ask(keys(records)) is not None


def test_the_grid_follows_the_order_of_the_space() -> None:
    study = small_study(sampler="grid")
    plan = make_plan(study)
    records, _ = sweep(study, 7, plan=plan)
    expected = [point for point, _ in list(plan.settings.values())[:6]]
    assert [r.trial.point for r in records[1:]] == expected


def test_an_unknown_sampler_is_refused() -> None:
    study = small_study(sampler="annealing")
    with pytest.raises(UserError, match="annealing"):
        make_sampler(study, make_plan(study))


@pytest.mark.parametrize("flat", [True, False])
def test_a_point_comes_back_from_optuna_as_it_was(flat: bool) -> None:
    study = small_study()
    for point, _ in make_plan(study).settings.values():
        stored = encode(study.space, point, flat=flat)
        trial = optuna.trial.FixedTrial(stored)
        assert suggest(trial, study.space, flat=flat) == point  # type: ignore[arg-type]


def test_samplers_that_look_at_parameters_together_see_the_same_ones_in_all_trials() -> None:
    study = small_study()
    names = {p.name for p in study.space.parameters}
    for point, _ in make_plan(study).settings.values():
        trial = finished_trial(
            record(study, 1, point), study.space, study.objectives, study.slos, flat=True
        )
        assert trial is not None
        assert trial.params.keys() == names
