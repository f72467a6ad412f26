"""What failures teach about settings that were not launched."""

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.config import find_space, load_study, parse_study
from sweeper.errors import Failure, FailureClass, Stage
from sweeper.planning.agenda import Ledger, next_trial
from sweeper.planning.families import Rule, covered, ruled_out, rules
from sweeper.planning.plan import Plan, make_plan
from sweeper.records import Point, Purpose, Scalar, Trial, TrialRecord, TrialState
from sweeper.study import Study
from tests.build import make_record, make_trial

F = FailureClass
TEXT = """\
study: families
engine:
  model: /models/target
  gpus: 1
  flags: {speculative-algorithm: EAGLE3, cuda-graph-max-bs-decode: 8}
parameters:
  draft: {flag: speculative-draft-model-path, choices: {a: /models/a, b: /models/b}}
  steps: {flag: speculative-num-steps, values: [1, 2, 3]}
  topk: {flag: speculative-eagle-topk, values: [1, 2, 4]}
  draft_tokens:
    flag: speculative-num-draft-tokens
    values: [2, 4, 8]
    when: topk > 1
    otherwise: steps + 1
  graph:
    choices:
      on: {}
      off: {flags: {disable-cuda-graph: true}}
  fraction: {flag: mem-fraction-static, values: [0.7, 0.8, 0.9]}
  nccl:
    choices:
      default: {}
      ring: {env: {NCCL_ALGO: Ring}}
constraints: [steps < draft_tokens <= 1 + topk + (steps - 1) * topk ** 2]
known: [{draft: a, steps: 3}, {draft: b, steps: 3}]
workloads: [{name: single}]
objectives: [{maximize: output_tok_s}]
budget: {launches: 400}
"""
STUDY = parse_study(TEXT, "space.yaml").resolved(gpus_present=False)
PLAN = make_plan(STUDY)
POINT: Point = STUDY.space.canonical(
    {"draft": "a", "steps": 2, "topk": 2, "draft_tokens": 4, "fraction": 0.8}
)


def trial_of(number: int, **changes: Scalar) -> Trial:
    point = STUDY.space.canonical({**POINT, **changes})
    return replace(make_trial(number, point), launch=STUDY.launch(point), context=STUDY.context)


def failed(
    number: int, kind: F, stage: Stage, line: str = "it broke 7 times", **changes: Scalar
) -> TrialRecord:
    record = make_record(number, state=TrialState.INFEASIBLE, kind=kind)
    failure = Failure(kind=kind, stage=stage, line=line, exit_code=-9)
    return replace(record, trial=trial_of(number, **changes), failure=failure)


def failed_at(number: int, kind: F, stage: Stage, point: Mapping[str, Any]) -> TrialRecord:
    return failed(number, kind, stage, "it broke", **point)


def worked(number: int, **changes: Scalar) -> TrialRecord:
    return replace(make_record(number), trial=trial_of(number, **changes))


def is_out(found: tuple[Rule, ...], **changes: Scalar) -> bool:
    point = STUDY.space.canonical({**POINT, **changes})
    return covered(point, STUDY.launch(point), found) is not None


def test_nothing_is_ruled_out_while_nothing_failed() -> None:
    assert rules([worked(0), worked(1, steps=3)], STUDY) == ()
    assert ruled_out(PLAN.settings, ()) == set()


def test_a_draft_that_does_not_fit_is_out_after_one_launch_whatever_its_shape() -> None:
    found = rules([failed(3, F.DRAFT_INCOMPATIBLE, Stage.DRAFT_LOAD)], STUDY)
    assert is_out(found, topk=1, steps=3, nccl="ring", graph="off")
    assert not is_out(found, draft="b")
    assert "draft /models/a as EAGLE3 does not fit (trial 3" in found[0].reason
    out = ruled_out(PLAN.settings, found)
    assert len(out) == len(PLAN.settings) // 2


@pytest.mark.parametrize("stage", [Stage.GRAPH_CAPTURE, Stage.WARMUP])
def test_a_tree_that_dies_when_all_is_loaded_says_nothing_of_chains(stage: Stage) -> None:
    dead = {"steps": 3, "topk": 2, "draft_tokens": 8}
    found = rules([failed_at(3, F.DRAFT_INCOMPATIBLE, stage, dead)], STUDY)
    assert not is_out(found, steps=3, topk=1)
    assert is_out(rules([failed(3, F.DRAFT_INCOMPATIBLE, stage, topk=1)], STUDY), steps=3, topk=2)


def test_a_draft_that_once_worked_fits() -> None:
    found = rules([worked(2, nccl="ring"), failed(3, F.DRAFT_INCOMPATIBLE, Stage.WARMUP)], STUDY)
    assert not is_out(found, topk=1)


def test_a_missing_draft_is_out_and_a_missing_target_is_no_family() -> None:
    line = "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{}'."
    draft = failed(3, F.MODEL_MISSING, Stage.ARGS, line.format("/models/a"))
    target = failed(3, F.MODEL_MISSING, Stage.ARGS, line.format("/models/target"))
    assert is_out(rules([draft], STUDY), steps=1, topk=1)
    assert not is_out(rules([draft], STUDY), draft="b")
    assert rules([target], STUDY) == ()


@pytest.mark.parametrize(
    ("changes", "out"),
    [
        ({}, True),
        ({"draft_tokens": 8, "steps": 3, "topk": 4}, True),
        ({"fraction": 0.9}, True),
        ({"fraction": 0.7}, False),
        ({"draft_tokens": 2}, False),
        ({"topk": 4, "steps": 1}, False),
        ({"graph": "off"}, False),
        ({"nccl": "ring"}, False),
        ({"draft": "b"}, False),
    ],
)
def test_out_of_memory_at_graph_capture_rules_out_what_is_at_least_as_large(
    changes: dict[str, Any], out: bool
) -> None:
    found = rules([failed(5, F.OOM, Stage.GRAPH_CAPTURE)], STUDY)
    assert is_out(found, **changes) is out


def test_the_two_opposite_memory_failures_close_a_family_from_both_sides() -> None:
    records = [
        failed(5, F.OOM, Stage.GRAPH_CAPTURE, fraction=0.8),
        failed(6, F.KV_POOL_TOO_SMALL, Stage.KV_POOL, fraction=0.7),
    ]
    found = rules(records, STUDY)
    assert [is_out(found, fraction=f) for f in (0.7, 0.8, 0.9)] == [True, True, True]
    assert not is_out(rules(records[1:], STUDY), fraction=0.8)


def test_a_larger_setting_that_worked_makes_the_memory_failure_an_accident() -> None:
    records = [worked(4, fraction=0.9), failed(5, F.OOM, Stage.LOAD)]
    assert rules(records, STUDY) == ()


def test_one_refused_setting_is_no_family() -> None:
    assert rules([failed(1, F.UNSUPPORTED_CONFIG, Stage.GRAPH_CAPTURE)], STUDY) == ()


def test_two_refused_settings_rule_out_what_shares_all_that_they_share() -> None:
    records = [
        failed(1, F.UNSUPPORTED_CONFIG, Stage.GRAPH_CAPTURE, steps=2, nccl="ring"),
        failed(2, F.UNSUPPORTED_CONFIG, Stage.GRAPH_CAPTURE, steps=2, nccl="default"),
    ]
    found = rules(records, STUDY)
    assert is_out(found, nccl="ring")
    assert not is_out(found, topk=4)
    assert not is_out(found, steps=3)
    assert not is_out(found, draft="b")


def test_three_refused_settings_show_the_smallest_cause() -> None:
    records = [
        worked(0, topk=1),
        worked(1, topk=1, steps=3, graph="off", nccl="ring", draft="b", fraction=0.7),
        failed(2, F.UNSUPPORTED_CONFIG, Stage.GRAPH_CAPTURE, topk=2, draft_tokens=4),
        failed(3, F.UNSUPPORTED_CONFIG, Stage.GRAPH_CAPTURE, topk=4, steps=3, draft_tokens=8),
        failed(4, F.UNSUPPORTED_CONFIG, Stage.GRAPH_CAPTURE, topk=2, steps=3, draft_tokens=2),
    ]
    found = rules(records, STUDY)
    assert found[0].reason.startswith("topk >= 2: unsupported_config at graph_capture in trials 2")
    assert is_out(found, topk=4, draft="b", graph="off", nccl="ring", steps=1)
    assert not is_out(found, topk=1)


def test_a_cause_of_two_parameters_together_is_found() -> None:
    bad: dict[str, Any] = {"topk": 2, "graph": "off"}
    records = [
        worked(0, topk=2, graph="on", nccl="ring", draft="b"),
        worked(1, topk=1, graph="off", fraction=0.7),
        failed(2, F.CONFIG_REJECTED, Stage.ARGS, steps=2, draft_tokens=4, **bad),
        failed(3, F.CONFIG_REJECTED, Stage.ARGS, steps=3, draft_tokens=8, fraction=0.7, **bad),
        failed(4, F.CONFIG_REJECTED, Stage.ARGS, steps=1, draft_tokens=2, draft="b", **bad),
    ]
    found = rules(records, STUDY)
    assert is_out(found, steps=3, fraction=0.9, draft="b", **bad)
    assert not is_out(found, topk=2, graph="on")
    assert not is_out(found, topk=1, graph="off")


@pytest.mark.parametrize("kind", [F.HANG, F.WATCHDOG, F.CRASH_KERNEL, F.START_TIMEOUT], ids=str)
def test_what_chance_may_have_caused_needs_three_settings(kind: F) -> None:
    records = [failed(n, kind, Stage.SERVING, steps=n, topk=1) for n in (1, 2, 3)]
    assert rules(records[:2], STUDY) == ()
    assert is_out(rules(records, STUDY), topk=1, steps=2)


@pytest.mark.parametrize("kind", [F.KILLED, F.PORT_CONFLICT, F.NODE_LOST, F.GPU_MEMORY_NOT_FREE])
def test_a_machines_fault_teaches_nothing(kind: F) -> None:
    records = [failed(n, kind, Stage.LOAD, steps=n) for n in (1, 2, 3)]
    assert rules(records, STUDY) == ()


KINDS = st.sampled_from(list(F))
POINTS = st.sampled_from([point for point, _ in PLAN.settings.values()])


@settings(max_examples=100, deadline=None)
@given(
    bad=st.lists(st.tuples(POINTS, KINDS, st.sampled_from(list(Stage))), max_size=8),
    good=st.lists(POINTS, max_size=8),
)
def test_no_rule_ever_covers_a_setting_that_worked(
    bad: list[tuple[Point, F, Stage]], good: list[Point]
) -> None:
    records = [failed_at(n, kind, stage, point) for n, (point, kind, stage) in enumerate(bad)]
    records += [worked(100 + n, **point) for n, point in enumerate(good)]
    found = rules(records, STUDY)
    for point in good:
        assert covered(point, STUDY.launch(point), found) is None
    for rule in found:
        assert rule.trials
        assert any(rule.applies(r.trial.point, r.trial.launch) for r in records)


class FirstFree:
    """Asks for the first setting of the plan that is not taken; counts how often it is asked."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.asked = 0

    def __call__(self, taken: Collection[str]) -> Point | None:
        self.asked += 1
        return next((p for k, (p, _) in self.plan.settings.items() if k not in taken), None)


@pytest.mark.parametrize("is_listed", [True, False], ids=["listed", "too large to list"])
def test_the_agenda_launches_no_setting_of_a_family_that_cannot_work(is_listed: bool) -> None:
    records = [replace(make_record(0), trial=_baseline(STUDY))]
    ask = FirstFree(PLAN)
    # Draft a does not fit; the known setting with it shows that, and draft b is all that is left.
    while len(records) < 60:
        ledger = Ledger(
            study=STUDY,
            records=records,
            running=(),
            next_number=len(records),
            settings=PLAN.settings if is_listed else {},
        )
        trial = next_trial(ledger, ask)
        if trial is None:
            break
        if trial.point["draft"] == "a":
            records.append(failed(trial.number, F.DRAFT_INCOMPATIBLE, Stage.DRAFT_LOAD))
            records[-1] = replace(records[-1], trial=trial)
        else:
            records.append(replace(make_record(trial.number), trial=trial))
    drafts = [r.trial.point.get("draft") for r in records]
    assert drafts[1:3] == ["a", "b"]
    assert drafts.count("a") == 1
    if is_listed:
        assert drafts.count("b") > 50
        assert ask.asked <= 60


def test_a_known_setting_of_a_family_that_cannot_work_is_not_launched() -> None:
    records = [
        replace(make_record(0), trial=_baseline(STUDY)),
        failed(1, F.DRAFT_INCOMPATIBLE, Stage.DRAFT_LOAD, draft="b"),
    ]
    numbers = []
    for number in (2, 3):
        trial = next_trial(
            Ledger(study=STUDY, records=records, running=(), next_number=number), lambda _: None
        )
        if trial is not None:
            numbers.append(trial.point["draft"])
            records.append(replace(make_record(number), trial=trial))
    assert numbers == ["a"]


def test_thousands_of_settings_are_checked_in_a_moment() -> None:
    study = load_study(find_space("eagle3")).resolved(gpus_present=False)
    plan = make_plan(study)
    chosen = list(plan.settings.values())[:: len(plan.settings) // 30]
    records = []
    for number, (point, launch) in enumerate(chosen):
        record = make_record(number, state=TrialState.INFEASIBLE, kind=F.OOM)
        trial = replace(make_trial(number, point), launch=launch)
        records.append(replace(record, trial=trial))
    begun = time.process_time()
    out = ruled_out(plan.settings, rules(records, study))
    assert out >= {launch.key for _, launch in chosen}
    assert time.process_time() - begun < 10.0


def _baseline(study: Study) -> Trial:
    trial = make_trial(0, {}, purpose=Purpose.BASELINE)
    return replace(trial, launch=study.baseline_launch(), context=study.context)
