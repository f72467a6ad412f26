"""Progress, drift and hours, on figures worked out by hand."""

from dataclasses import replace

import pytest

from sweeper.errors import FailureClass, Stage
from sweeper.objective import Objective
from sweeper.records import HostFacts, Measurement, TrialState
from sweeper.report.draw_run import draw_drift
from sweeper.report.progress import (
    Band,
    DriftInfo,
    HoursInfo,
    Launched,
    ProgressInfo,
    baseline_band,
    drift_info,
    hours_info,
    progress_info,
    reference,
)
from tests.report import build

STUDY = build.small_study()
SPEED = STUDY.objectives[0]
#: 2 GPUs for 600 s of start and 120 s of measuring.
HOURS = 0.4


def test_progress_follows_the_best_setting_and_leaves_out_the_baseline() -> None:
    records = [
        build.record(STUDY, 0, tok_s=95.0),
        build.record(STUDY, 1, build.point(1), tok_s=80.0),
        build.failed(STUDY, 2, build.point(2)),
        build.record(STUDY, 3, build.point(3), tok_s=75.0, state=TrialState.PRUNED),
        build.record(STUDY, 4, build.point(2, "tree"), tok_s=94.0),
    ]
    at = [
        Launched(
            number=0, launch=1, gpu_hours=HOURS, value=95.0, state=TrialState.COMPLETE,
            setting="baseline", is_baseline=True,
        ),
        Launched(
            number=1, launch=2, gpu_hours=2 * HOURS, value=80.0, state=TrialState.COMPLETE,
            setting="draft=ours steps=1 topk=1 draft_tokens=2 nccl=default",
        ),
        Launched(
            number=2, launch=3, gpu_hours=3 * HOURS, value=None, state=TrialState.INFEASIBLE,
            setting="draft=ours steps=2 topk=1 draft_tokens=3 nccl=default",
            why=str(FailureClass.OOM),
        ),
        Launched(
            number=3, launch=4, gpu_hours=4 * HOURS, value=75.0, state=TrialState.PRUNED,
            setting="draft=ours steps=3 topk=1 draft_tokens=4 nccl=default",
        ),
        Launched(
            number=4, launch=5, gpu_hours=5 * HOURS, value=94.0, state=TrialState.COMPLETE,
            setting="draft=ours steps=2 topk=1 draft_tokens=3 nccl=tree",
        ),
    ]  # fmt: skip
    info = progress_info(STUDY, records, SPEED)
    assert [p.gpu_hours for p in info.points] == pytest.approx([p.gpu_hours for p in at])
    assert info == ProgressInfo(
        objective=SPEED,
        # GPU-hours are sums of floats; compared above.
        points=tuple(
            replace(p, gpu_hours=q.gpu_hours) for p, q in zip(at, info.points, strict=True)
        ),
        best_so_far=(None, 80.0, 80.0, 80.0, 94.0),
        baseline=Band(low=95.0, middle=95.0, high=95.0, count=1),
        reference=90.0,
        simulated=True,
    )


def test_what_was_never_started_is_no_launch() -> None:
    refused = build.record(
        STUDY, 1, build.point(1), state=TrialState.INFEASIBLE, reason="too many", started=False
    )
    info = progress_info(STUDY, [build.record(STUDY, 0, tok_s=90.0), refused], SPEED)
    assert [p.number for p in info.points] == [0]


def test_a_setting_that_breaks_a_limit_is_never_the_best_so_far() -> None:
    study = build.small_study(build.SPACE + "slo: [ttft_p99_ms < 500]\n")
    slow = Measurement(workload="single", requests=5, output_tok_s=120.0, ttft_p99_ms=900.0)
    kept = Measurement(workload="single", requests=5, output_tok_s=80.0, ttft_p99_ms=100.0)
    records = [
        build.record(study, 0, build.point(1), measurements=[slow]),
        build.record(study, 1, build.point(2), measurements=[kept]),
    ]
    assert progress_info(study, records, study.objectives[0]).best_so_far == (None, 80.0)


def test_less_is_better_where_the_objective_is_minimized() -> None:
    latency = Objective(metric="ttft_p50_ms", maximize=False, workload="single")
    records = [
        build.record(
            STUDY,
            number,
            build.point(number + 1),
            measurements=[Measurement(workload="single", requests=1, ttft_p50_ms=value)],
        )
        for number, value in enumerate((70.0, 50.0, 60.0))
    ]
    info = progress_info(STUDY, records, latency)
    assert info.best_so_far == (70.0, 50.0, 50.0)
    assert info.reference is None


def test_the_band_reaches_from_the_lowest_to_the_highest_interval() -> None:
    def base(number: int, low: float, middle: float, high: float) -> Measurement:
        del number
        return Measurement(
            workload="single", requests=5, output_tok_s=middle, output_tok_s_low=low,
            output_tok_s_high=high,
        )  # fmt: skip

    records = [
        build.record(STUDY, 0, measurements=[base(0, 88.0, 90.0, 91.0)]),
        build.record(STUDY, 1, measurements=[base(1, 89.0, 91.0, 92.5)]),
        build.record(STUDY, 2, tok_s=89.5),
    ]
    assert baseline_band(records, SPEED) == Band(low=88.0, middle=90.0, high=92.5, count=3)
    assert baseline_band([], SPEED) is None


def test_the_reference_is_of_the_first_workload_only() -> None:
    two = build.study("two-objectives")
    assert reference(two, two.objectives[0]) == 90.0
    assert reference(two, two.objectives[1]) is None
    assert reference(two, Objective(metric="output_tok_s", workload="busy")) is None


def test_drift_counts_the_hours_of_all_trials_before() -> None:
    records = [
        build.record(STUDY, 0, tok_s=90.0, phases_s={"start": 1800.0}),
        build.record(STUDY, 1, build.point(1), tok_s=80.0, phases_s={"start": 1800.0}),
        build.record(STUDY, 2, tok_s=89.0, phases_s={"start": 3600.0}),
    ]
    assert drift_info(STUDY, records) == DriftInfo(
        objective=SPEED,
        numbers=(0, 2),
        slots=("", ""),
        hours=(0.0, 1.0),
        values=(90.0, 89.0),
        trend=None,
        simulated=True,
    )


def test_slots_that_work_side_by_side_have_hours_and_a_line_each() -> None:
    records = [
        build.record(
            STUDY, n, tok_s=100.0 - n // 2 - 5 * (n % 2), phases_s={"start": 3600.0},
            host=HostFacts(host="node", slot=str(n % 2)),
        )
        for n in range(12)
    ]  # fmt: skip
    info = drift_info(STUDY, records)
    assert info.hours == (0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0, 5.0)
    assert info.trend is not None
    assert info.trend.share_per_hour == pytest.approx(-1 / 97.5)
    lines = {trace.name: list(trace.y) for trace in draw_drift(info).data[:2]}
    assert lines["baseline, node/0"] == [100.0, 99.0, 98.0, 97.0, 96.0, 95.0]
    assert lines["baseline, node/1"] == [95.0, 94.0, 93.0, 92.0, 91.0, 90.0]


def test_a_falling_baseline_shows_its_slope() -> None:
    records = [
        build.record(STUDY, n, tok_s=100.0 - n, phases_s={"start": 3600.0}) for n in range(6)
    ]
    trend = drift_info(STUDY, records).trend
    assert trend is not None
    assert trend.share_per_hour == pytest.approx(-1 / 97.5)
    assert trend.p_value < 0.05


def test_hours_are_split_by_outcome_phase_and_stage() -> None:
    phases = {"start": 1800.0, "start.load": 900.0, "start.import": 450.0, "measure": 900.0}
    records = [
        build.record(STUDY, 0, tok_s=90.0, phases_s=phases),
        build.record(
            STUDY, 1, build.point(1), state=TrialState.INFEASIBLE, reason="no",
            phases_s={"start": 1800.0},
        ),
        build.record(
            STUDY, 2, build.point(2), state=TrialState.INFEASIBLE, reason="no", phases_s={},
            started=False,
        ),
    ]  # fmt: skip
    assert hours_info(records) == HoursInfo(
        outcomes=((TrialState.COMPLETE, 1), (TrialState.INFEASIBLE, 1)),
        phases=("start", f"start.{Stage.IMPORT}", f"start.{Stage.LOAD}", "measure"),
        gpu_hours=((0.25, 0.25, 0.5, 0.5), (1.0, 0.0, 0.0, 0.0)),
        total=2.5,
        simulated=True,
    )
