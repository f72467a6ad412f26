"""Failures, refusals, rewrites and provenance."""

from sweeper.errors import FailureClass, Fault, Stage
from sweeper.planning.plan import make_plan
from sweeper.records import HostFacts, Measurement, ServerFacts, TrialState
from sweeper.report.provenance import CommonSetting, compare_info, provenance_info
from sweeper.report.tables import settings_table
from sweeper.report.trouble import (
    FailedClass,
    Refused,
    Rewrite,
    failure_info,
    refused_info,
    rewrite_info,
)
from tests.report import build
from tests.report.runs import run_of

STUDY = build.small_study()


def server(
    version: str = "0.5.15", **rewritten: tuple[str | int | None, str | int]
) -> ServerFacts:
    return ServerFacts(
        version=version,
        flags={},
        rewritten={name.replace("_", "-"): pair for name, pair in rewritten.items()},
        simulated=True,
        time_scale=10.0,
    )


def test_failures_are_grouped_by_class_with_the_last_line_and_the_remedy() -> None:
    records = [
        build.failed(STUDY, 0, build.point(1), FailureClass.WATCHDOG, "stood still"),
        build.failed(STUDY, 1, build.point(2), line="first"),
        build.failed(STUDY, 2, build.point(2), line="last --api-key hunter2"),
    ]
    oom, watchdog = failure_info(records).classes
    assert oom == FailedClass(
        kind=FailureClass.OOM,
        fault=Fault.SETTING,
        remedy="lower --mem-fraction-static or shorten the CUDA graph list",
        stages=(Stage.GRAPH_CAPTURE,),
        trials=(1, 2),
        settings=("draft=ours steps=2 topk=1 draft_tokens=3 nccl=default",),
        recovered=(),
        line="last --api-key ***",
        log="logs/000002.log",
    )
    assert watchdog.kind is FailureClass.WATCHDOG


def test_refusals_of_the_plan_and_of_the_sweep_are_counted_by_reason() -> None:
    study = build.small_study(build.SPACE + "constraints: [steps < 3]\n")
    plan = make_plan(study)
    refused = build.record(
        study, 0, build.point(1), state=TrialState.INFEASIBLE, reason="too big", started=False
    )
    info = refused_info(plan, [refused, refused])
    by_reason = {r.reason: r for r in info.refused}
    assert by_reason["constraint: steps < 3"].count == 12
    assert len(by_reason["constraint: steps < 3"].examples) == 5
    assert by_reason["too big"] == Refused(
        reason="too big",
        count=1,
        examples=("draft=ours steps=1 topk=1 draft_tokens=2 nccl=default",),
    )
    assert info.settings == len(plan.settings)


def test_rewritten_flags_are_grouped_and_secrets_hidden() -> None:
    records = [
        build.record(
            STUDY,
            number,
            build.point(1),
            tok_s=80.0,
            server=server(max_running_requests=(None, 48), api_key=("hunter2", "hunter3")),
        )
        for number in (3, 4)
    ]
    assert rewrite_info(records).rewrites == (
        Rewrite(flag="api-key", asked="***", effective="***", trials=(3, 4)),
        Rewrite(flag="max-running-requests", asked="(not set)", effective="48", trials=(3, 4)),
    )


def test_provenance_names_each_value_once_and_nothing_where_nothing_is_known() -> None:
    host = HostFacts(host="node-1", slot="a", gpu_name="H200", driver_version="570")
    records = [
        build.record(STUDY, n, build.point(1), tok_s=80.0, server=server(), host=host)
        for n in (0, 1)
    ]
    rows = dict(provenance_info(STUDY, records).rows)
    assert rows["engine version"] == ("0.5.15",)
    assert rows["GPU"] == ("H200",)
    assert rows["simulated"] == ("yes",)
    assert rows["engine seconds in a real second"] == ("10",)
    assert rows["trials"] == ("2 complete",)
    assert rows["limits"] == ()
    empty = dict(provenance_info(STUDY, []).rows)
    assert empty["engine version"] == ()
    assert empty["first and last start"] == ()


def test_two_runs_are_matched_by_their_points() -> None:
    other = build.small_study(build.SPACE.replace("tp-size: 2", "tp-size: 2, dtype: half"))
    before = [
        build.record(STUDY, 0, tok_s=90.0, server=server()),
        build.record(STUDY, 1, build.point(1), tok_s=80.0, server=server()),
        build.record(STUDY, 2, build.point(2), tok_s=85.0, server=server()),
    ]
    after = [
        build.record(other, 0, tok_s=99.0, server=server("0.5.23")),
        build.record(other, 1, build.point(1), tok_s=60.0, server=server("0.5.23")),
    ]
    info = compare_info(("old", "new"), (STUDY, other), (before, after))
    assert info.common == (
        CommonSetting(
            setting="draft=ours steps=1 topk=1 draft_tokens=2 nccl=default",
            values=(80.0, 60.0),
            ratio=0.75,
        ),
        CommonSetting(setting="baseline", values=(90.0, 99.0), ratio=1.1),
    )
    assert info.only == (1, 0)
    changed = {name: (a, b) for name, a, b in info.changed}
    assert changed["engine version"] == (("0.5.15",), ("0.5.23",))
    assert "GPU" not in changed
    assert any(line.startswith("+engine:") for line in info.diff)


def test_a_machine_s_fault_that_was_measured_on_a_retry_says_in_which_trial() -> None:
    records = [
        build.failed(STUDY, 0, build.point(1), FailureClass.NCCL_INIT),
        build.failed(STUDY, 1, build.point(1), FailureClass.NCCL_INIT),
        build.failed(STUDY, 2, build.point(2), FailureClass.NCCL_INIT),
        build.record(STUDY, 3, build.point(1), tok_s=80.0),
    ]
    (found,) = failure_info(records).classes
    assert found.trials == (0, 1, 2)
    assert found.recovered == (3,)
    # What was measured before it failed is no recovery.
    late = build.failed(STUDY, 4, build.point(1), FailureClass.NCCL_INIT)
    (found,) = failure_info([records[3], late]).classes
    assert found.recovered == ()


def test_of_a_number_to_be_made_small_a_fall_is_a_fall_everywhere() -> None:
    study = build.small_study(
        build.SPACE.replace("maximize: output_tok_s", "minimize: ttft_p99_ms")
    )

    def measured(ttft: float) -> list[Measurement]:
        return [Measurement(workload="single", requests=5, ttft_p99_ms=ttft)]

    records = [
        build.record(study, 0, measurements=measured(810.0)),
        build.record(study, 1, build.point(1), measurements=measured(404.0)),
    ]
    assert ">-50.1 %<" in settings_table(run_of(study, records))
    later = [build.record(study, 0, measurements=measured(405.0))]
    (common,) = compare_info(("old", "new"), (study, study), (records, later)).common
    assert common.ratio == 0.5
