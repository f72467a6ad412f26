"""A slot whose GPU memory others hold, on the inline executor."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sweeper.cluster import InlineExecutor, Outcome
from sweeper.cluster.service import Service
from sweeper.engines.sglang import SGLang
from sweeper.errors import FailureClass, Stage
from sweeper.records import TrialState
from sweeper.serving import FakeGpus
from tests.cluster.stages import Family, assignment, wait_for
from tests.serving.odd_server import hold_memory

pytestmark = pytest.mark.slow
STUDY = "held"


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def run(executor: InlineExecutor, number: int, folder: Path) -> Outcome:
    given = assignment(STUDY, number, folder, None)
    limits = replace(given.limits, memory_free_s=0.2)
    executor.submit(executor.free_slots()[0], replace(given, limits=limits))
    outcomes: list[Outcome] = []
    wait_for(lambda: bool(outcomes) or _take(executor, outcomes), "the outcome")
    return outcomes[0]


def _take(executor: InlineExecutor, outcomes: list[Outcome]) -> bool:
    outcomes.extend(executor.wait(0.1))
    return bool(outcomes)


def test_a_slot_with_held_memory_is_tried_again_and_then_out_of_service_with_the_holders_name(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    gpus = FakeGpus(1, tmp_path / "gpus")
    hold_memory(tmp_path / "gpus", 0, 120_000, holder.pid)
    executor = InlineExecutor(SGLang(), gpus, gpu_ids=(0,))
    for number in range(3):
        assert executor.lost_slots() == {}
        record = run(executor, number, tmp_path).record
        assert record is not None
        assert record.failure is not None
        assert record.failure.kind is FailureClass.GPU_MEMORY_NOT_FREE
        assert record.failure.stage is Stage.ARGS
    (why,) = executor.lost_slots().values()
    assert f"sleep (pid {holder.pid})" in why
    assert executor.free_slots() == []
    executor.close()


def test_a_trial_after_which_memory_is_not_back_keeps_what_it_measured(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    gpus = FakeGpus(1, tmp_path / "gpus")
    executor = InlineExecutor(SGLang(), gpus, gpu_ids=(0,))
    executor.submit(
        executor.free_slots()[0],
        replace(
            assignment(STUDY, 0, tmp_path, None),
            limits=replace(assignment(STUDY, 0, tmp_path, None).limits, memory_free_s=0.2),
        ),
    )
    wait_for(lambda: bool(Family(STUDY).leaders()), "the server")
    hold_memory(tmp_path / "gpus", 0, 50_000, holder.pid)
    outcomes: list[Outcome] = []
    wait_for(lambda: _take(executor, outcomes), "the outcome")
    record = outcomes[0].record
    assert record is not None
    assert record.state is TrialState.COMPLETE
    assert record.measurements
    assert record.reason is not None
    assert f"sleep (pid {holder.pid})" in record.reason
    executor.close()


def test_a_start_that_fails_and_leaves_memory_held_counts_against_the_slot(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    executor = InlineExecutor(SGLang(), FakeGpus(1, tmp_path / "gpus"), gpu_ids=(0,))
    given = assignment(STUDY, 0, tmp_path, None)
    executor.submit(
        executor.free_slots()[0],
        replace(
            given,
            limits=replace(given.limits, memory_free_s=0.2),
            env=(*given.env, ("SWEEPER_SIM_FAULT", "oom_graph"), ("SWEEPER_SIM_START_S", "20")),
        ),
    )
    wait_for(lambda: bool(Family(STUDY).leaders()), "the server")
    # Less than half of the GPU: the next server would be started beside it.
    hold_memory(tmp_path / "gpus", 0, 50_000, holder.pid)
    outcomes: list[Outcome] = []
    wait_for(lambda: _take(executor, outcomes), "the outcome")
    executor.close()
    record = outcomes[0].record
    assert record is not None
    assert record.failure is not None
    assert record.reason is not None
    assert f"sleep (pid {holder.pid})" in record.reason
    slots = Service()
    slots.add(["this", "another"])
    slots.ended("this", record)
    assert slots.lost.keys() == {"this"}
