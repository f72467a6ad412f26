"""Fronts, knees, steps and what-ifs, on figures worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.objective import Objective
from sweeper.records import Measurement, TrialRecord
from sweeper.report.tradeoffs import (
    AcceptInfo,
    Step,
    WhatIfInfo,
    accept_info,
    knee,
    pareto_info,
    round_levels,
    top_settings,
    what_if_info,
)
from tests.report import build

STUDY = build.small_study(build.SPACE + "slo: [ttft_p99_ms < 500]\n")
X = Objective(metric="output_tok_s", workload="single")
Y = Objective(metric="ttft_p99_ms", maximize=False, workload="single")


def at(number: int, steps: int, tok_s: float, ttft: float, nccl: str = "default") -> TrialRecord:
    measured = Measurement(workload="single", requests=5, output_tok_s=tok_s, ttft_p99_ms=ttft)
    return build.record(STUDY, number, build.point(steps, nccl), measurements=[measured])


def test_the_front_leaves_out_what_is_dominated_or_breaks_a_limit() -> None:
    records = [
        at(0, 1, 80.0, 100.0),
        at(1, 2, 100.0, 200.0),
        at(2, 3, 90.0, 250.0),
        at(3, 1, 120.0, 900.0, "tree"),
        at(4, 2, 110.0, 400.0, "tree"),
    ]
    info = pareto_info(STUDY, records, X, Y)
    assert info.front == (0, 1, 4)
    assert info.knee == 1
    assert [c.on_front for c in info.candidates] == [True, True, False, False, True]
    assert info.candidates[3].broken == ("ttft_p99_ms < 500",)
    assert info.x_limits == ()
    assert info.y_limits == (500.0,)
    assert info.simulated


def test_launches_of_one_setting_are_one_candidate_at_their_median() -> None:
    records = [at(n, 2, v, 100.0) for n, v in enumerate((90.0, 100.0, 92.0))]
    (candidate,) = pareto_info(STUDY, records, X, Y).candidates
    assert (candidate.x, candidate.launches) == (92.0, 3)


def test_no_trials_give_no_front() -> None:
    info = pareto_info(STUDY, [], X, Y)
    assert (info.candidates, info.front, info.knee, info.simulated) == ((), (), None, False)


@pytest.mark.parametrize(
    ("gains", "index"),
    [
        ([(0.0, 10.0), (8.0, 9.0), (10.0, 0.0)], 1),
        ([(0.0, 10.0), (5.0, 5.0), (10.0, 0.0)], None),
        ([(0.0, 10.0), (1.0, 1.0), (10.0, 0.0)], None),
        ([(0.0, 10.0), (10.0, 0.0)], None),
        ([], None),
    ],
)
def test_the_knee_lies_farthest_beyond_the_chord(
    gains: list[tuple[float, float]], index: int | None
) -> None:
    assert knee(gains) == index


@given(st.floats(0.1, 1e5), st.floats(1.0, 3.0))
def test_levels_span_the_range_and_are_few(low: float, factor: float) -> None:
    high = low * factor
    levels = round_levels(low, high)
    assert 1 <= len(levels) <= 8
    assert list(levels) == sorted(set(levels))
    assert levels[-1] >= high * 0.999
    assert levels[0] <= high


def test_accept_length_and_step_time_are_those_of_complete_launches() -> None:
    speculating = Measurement(
        workload="single", requests=5, output_tok_s=99.0, accept_length=2.0, step_time_ms=20.0
    )
    plain = Measurement(workload="single", requests=5, output_tok_s=88.0, tpot_p50_ms=11.0)
    silent = Measurement(workload="single", requests=5, output_tok_s=70.0)
    records = [
        build.record(STUDY, 0, measurements=[plain]),
        build.record(STUDY, 1, build.point(2), measurements=[speculating]),
        build.record(STUDY, 2, build.point(3), measurements=[silent]),
    ]
    assert accept_info(STUDY, records) == AcceptInfo(
        workload="single",
        steps=(
            Step(
                number=0, setting="baseline", accept_length=1.0, step_time_ms=11.0, tok_s=88.0,
                is_baseline=True,
            ),
            Step(
                number=1, setting="draft=ours steps=2 topk=1 draft_tokens=3 nccl=default",
                accept_length=2.0, step_time_ms=20.0, tok_s=99.0, is_baseline=False,
            ),
        ),
        levels=(90.0, 92.5, 95.0, 97.5, 100.0),
        reference=90.0,
        simulated=True,
    )  # fmt: skip


def test_another_accept_length_changes_the_speed_in_proportion() -> None:
    info = AcceptInfo(
        workload="single",
        steps=(
            Step(number=0, setting="baseline", accept_length=1.0, step_time_ms=10.0, tok_s=99.0,
                 is_baseline=True),
            Step(number=1, setting="a", accept_length=2.0, step_time_ms=25.0, tok_s=79.0,
                 is_baseline=False),
            Step(number=2, setting="b", accept_length=1.5, step_time_ms=16.0, tok_s=93.0,
                 is_baseline=False),
            Step(number=3, setting="b", accept_length=1.6, step_time_ms=20.0, tok_s=79.0,
                 is_baseline=False),
        ),
        levels=(),
        reference=None,
        simulated=False,
    )  # fmt: skip
    assert what_if_info(info, 3.2) == WhatIfInfo(
        accept_length=3.2,
        settings=("b", "a"),
        measured_tok_s=(93.75, 80.0),
        supposed_tok_s=(200.0, 128.0),
        baseline_tok_s=100.0,
        simulated=False,
    )


def test_the_chosen_setting_stands_first_and_the_baseline_last() -> None:
    records = [
        build.record(STUDY, 0, measurements=at(0, 1, 90.0, 100.0).measurements),
        at(1, 1, 100.0, 100.0),
        at(2, 2, 120.0, 900.0),
        at(3, 3, 101.0, 100.0),
    ]
    plain = [s.records[0].trial.number for s in top_settings(STUDY, records, 5)]
    assert plain == [3, 1, 2, 0]
    first = records[1].trial.launch.key
    assert [s.records[0].trial.number for s in top_settings(STUDY, records, 2, first)] == [1, 3, 0]
