"""Each fault that the simulated server can show, through a whole sweep: class, stage, state, row."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from sweeper.engines.simulated.faults import FAULTS
from sweeper.errors import FailureClass, Stage
from sweeper.records import TrialState
from tests.sweeping import servers_of, space_text, store_of, sweep

pytestmark = pytest.mark.slow

F, S = FailureClass, Stage
DONE, MACHINE, SETTING = TrialState.COMPLETE, TrialState.FAILED, TrialState.INFEASIBLE


@dataclass(frozen=True, slots=True)
class Row:
    """What a fault must lead to; `stages` empty where it does not matter."""

    fault: str
    state: TrialState
    kind: FailureClass | None = None
    stages: tuple[Stage, ...] = ()
    line: str = ""
    more: str = ""
    flags: str = ""

    def __str__(self) -> str:
        return self.fault


ROWS = [
    Row("model_missing", SETTING, F.MODEL_MISSING, (S.ARGS, S.IMPORT), "Repo id must be in"),
    Row("nccl_init", MACHINE, F.NCCL_INIT, (S.DIST_INIT,), "NCCL error"),
    Row("nccl_hang", SETTING, F.START_TIMEOUT, (S.DIST_INIT,), "no progress for 8 s",
        more="limits: {silence_s: 8}"),
    Row("oom_load", SETTING, F.OOM, (S.LOAD,), "CUDA out of memory"),
    Row("memory_held", MACHINE, F.GPU_MEMORY_NOT_FREE, (S.KV_POOL,), "mem-fraction-static above"),
    Row("kv_pool", SETTING, F.KV_POOL_TOO_SMALL, (S.KV_POOL,), "try to increase --mem-fraction"),
    Row("draft_incompatible", SETTING, F.DRAFT_INCOMPATIBLE, (S.DRAFT_LOAD,), "Attempted to load"),
    Row("unsupported_config", SETTING, F.UNSUPPORTED_CONFIG, (), "Sizes of tensors must match"),
    Row("build_missing", SETTING, F.BUILD_MISSING, (S.GRAPH_CAPTURE, S.KV_POOL), "deep_gemm"),
    Row("oom_graph", SETTING, F.OOM, (S.GRAPH_CAPTURE,), "Capture cuda graph failed"),
    Row("hang_start", SETTING, F.START_TIMEOUT, (S.LOAD,), "no progress for 8 s",
        more="limits: {silence_s: 8}"),
    Row("slow_jit=200", DONE),
    Row("port_conflict", MACHINE, F.PORT_CONFLICT, (), "address already in use"),
    Row("health_lies", DONE),
    Row("draft_dies_at_first_request", SETTING, F.DRAFT_INCOMPATIBLE, (), "size of tensor a"),
    Row("oom_serving=2", SETTING, F.OOM, (S.SERVING, S.READY), "CUDA out of memory"),
    Row("crash_kernel=2", SETTING, F.CRASH_KERNEL, (S.SERVING, S.READY), "illegal memory access"),
    Row("killed=2", MACHINE, F.KILLED, (S.SERVING, S.READY), "exit code -9"),
    Row("nccl_timeout=2", MACHINE, F.NCCL_TIMEOUT, (S.SERVING, S.READY), "collective operation"),
    Row("watchdog=2", SETTING, F.WATCHDOG, (S.SERVING, S.READY), "watchdog timeout",
        flags="watchdog-timeout: 30"),
    Row("hang_serving=2", SETTING, F.HANG, (S.SERVING,), "", more="limits: {progress_s: 20}"),
    Row("truncated_stream=2", MACHINE, F.TRUNCATED_STREAM, (S.SERVING,)),
    Row("truncated_stream=6", DONE),
    Row("error_in_stream", MACHINE, F.UNKNOWN, (S.SERVING,)),
    Row("slow_close=100", DONE),
    Row("slow_stop=1000", DONE, more="limits: {stop_s: 0.5}"),
    Row("stubborn", DONE, more="limits: {stop_s: 0.5}"),
]  # fmt: skip


def test_every_fault_has_a_row() -> None:
    # Broken answers are judged against the baseline's, by `guard.py`.
    assert {row.fault.partition("=")[0] for row in ROWS} == FAULTS.keys() - {"degenerate"}


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_fault_is_named_and_stored_and_leaves_nothing(row: Row, tmp_path: Path) -> None:
    study = f"fault-{row.fault.replace('=', '-')}"
    text = space_text(study, fault=row.fault, flags=row.flags, more=row.more, children=1)
    status = sweep(tmp_path, text)
    assert servers_of(study) == []
    assert status == 0
    store = store_of(tmp_path, study)
    (record,) = store.records(requests=True)
    assert store.problems == []
    assert record.state is row.state, record.failure
    assert record.log is not None
    assert (store.folder / record.log).stat().st_size > 0
    assert (store.folder / "report.html").exists()
    if row.kind is None:
        assert record.failure is None
        assert len(record.requests) == 5
        return
    failure = record.failure
    assert failure is not None
    assert failure.kind is row.kind, failure
    assert not row.stages or failure.stage in row.stages, failure
    assert row.line in failure.line
    stacks = (store.folder / record.log).with_suffix(".stacks")
    stood_still = failure.kind in {F.HANG, F.START_TIMEOUT}
    assert stacks.exists() == stood_still
    assert not stood_still or "MainThread" in stacks.read_text(encoding="utf-8")


def test_a_fault_of_some_settings_leaves_the_others_measured(tmp_path: Path) -> None:
    text = space_text(
        "some",
        drop="speculative-*",
        base="{}",
        fault="oom_graph@speculative-num-steps>=3",
        steps=[1, 2, 3, 4],
        launches=9,
    )
    assert sweep(tmp_path, text) == 0
    records = store_of(tmp_path, "some").records()
    states = {r.trial.point.get("steps", 0): r.state for r in records if r.trial.point}
    assert states[1] is states[2] is DONE
    assert SETTING in states.values()
    assert servers_of("some") == []


def test_a_machines_fault_is_retried_twice_and_the_sweep_goes_on(tmp_path: Path) -> None:
    text = space_text(
        "retried",
        drop="speculative-*",
        base="{}",
        fault="killed@speculative-num-steps==3",
        steps=[2, 3],
        launches=9,
    )
    assert sweep(tmp_path, text) == 0
    records = store_of(tmp_path, "retried").records()
    bad = [r for r in records if r.state is MACHINE]
    assert [r.trial.attempt for r in bad] == [0, 1, 2]
    assert {r.trial.point["steps"] for r in bad} == {3}
    assert any(r.state is DONE and r.trial.point.get("steps") == 2 for r in records)
