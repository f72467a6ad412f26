"""Starting real processes that behave badly."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from sweeper.clock import Clock
from sweeper.engines.base import ControlRequest
from sweeper.errors import FailureClass, Stage
from sweeper.records import Limits
from sweeper.serving import Place
from sweeper.serving.supervisor import MARK
from tests.serving.plain import launch_of
from tests.serving.watching import PATIENT, Start, failure_of, marked


def test_a_server_gets_the_environment_that_is_recorded(
    started: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: Place
) -> None:
    for name in ("RAY_JOB_ID", "LEAKY", "NCCL_ALGO", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "from the shell")
    launch = replace(launch_of(), env={"NCCL_PROTO": "LL", "HF_TOKEN": "s3cret"})
    server = started(launch, place=replace(place, cache_dir=tmp_path / "cache"))
    answer = server.request(ControlRequest(method="GET", path="/info")).json
    assert isinstance(answer, dict)
    env = answer["env"]
    assert env.pop(MARK) == place.mark
    assert env["HF_TOKEN"] == "s3cret"
    assert server.env == env | {"HF_TOKEN": "***"}
    assert env["NCCL_PROTO"] == "LL"
    assert env["TRITON_CACHE_DIR"] == str(tmp_path / "cache" / "triton")
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert not {"RAY_JOB_ID", "LEAKY", "NCCL_ALGO"} & set(env)
    assert env["OMP_NUM_THREADS"] == str(len(os.sched_getaffinity(0)))


def test_a_late_server_is_waited_for(started: Start) -> None:
    stages: list[Stage] = []
    server = started(launch_of("late", seconds=2.0), on_stage=stages.append)
    assert stages[-3:] == [Stage.LOAD, Stage.WARMUP, Stage.READY]
    assert server.phases_s["start.load"] > 0
    assert server.phases_s["start"] >= 2.0


def test_a_refusal_that_passes_is_waited_for(started: Start) -> None:
    started(launch_of("refuses-twice"))


def test_a_server_that_warms_up_by_itself_is_left_alone(started: Start) -> None:
    server = started(launch_of("warms-up"))
    server.check()


@pytest.mark.parametrize("fault", ["one-long-line", "long-log", "flood"])
def test_output_of_any_size_does_not_keep_a_server_from_being_ready(
    fault: str, started: Start
) -> None:
    server = started(launch_of(fault))
    server.check()
    server.stop()


@pytest.mark.parametrize(
    ("fault", "kind", "code"),
    [
        ("dies-in-start", FailureClass.CRASH_KERNEL, 7),
        ("dies-without-a-word", FailureClass.KILLED, -9),
    ],
)
def test_a_server_that_dies_in_its_start_is_told_at_once(
    fault: str, kind: FailureClass, code: int, started: Start, place: Place
) -> None:
    failure = failure_of(lambda: started(launch_of(fault)))
    assert (failure.kind, failure.stage, failure.exit_code) == (kind, Stage.LOAD, code)
    assert marked(place.mark) == []


def test_a_program_that_is_not_there_is_the_installations_fault(started: Start) -> None:
    launch = replace(launch_of(), command=("/no/such/python",))
    failure = failure_of(lambda: started(launch))
    assert failure.kind is FailureClass.BUILD_MISSING
    assert "/no/such/python" in failure.line


@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        ("silent", {"silence_s": 0.5}),
        ("silent", {"start_s": 0.5}),
        ("never-answers", {"silence_s": 1.0}),
        ("never-answers", {"start_s": 1.5, "probe_s": 0.2}),
        ("never-makes-a-token", {"silence_s": 1.5}),
        ("flood", {"start_s": 0.01}),
    ],
)
def test_a_start_over_a_limit_is_given_up(
    fault: str, changes: dict[str, float], started: Start, place: Place
) -> None:
    limits = replace(PATIENT, **changes)
    failure = failure_of(lambda: started(launch_of(fault), limits=limits))
    assert failure.kind is FailureClass.START_TIMEOUT
    assert failure.exit_code is None
    assert ("no progress for" in failure.line) == ("silence_s" in changes)
    assert failure.limit_s == changes.get("silence_s", changes.get("start_s"))
    assert marked(place.mark) == []


def test_a_given_up_start_names_the_stage_and_the_last_line(started: Start) -> None:
    limits = replace(PATIENT, silence_s=5.0)
    failure = failure_of(lambda: started(launch_of("leaves-its-port"), limits=limits))
    assert failure.stage is Stage.WARMUP
    assert "last line: stage warmup" in failure.line


def test_a_cause_in_the_log_is_worth_more_than_a_passed_limit(started: Start) -> None:
    limits = replace(PATIENT, silence_s=5.0)
    failure = failure_of(lambda: started(launch_of("shows-a-cause-and-hangs"), limits=limits))
    assert (failure.kind, failure.line) == (FailureClass.CRASH_KERNEL, "a rank is missing")


@pytest.mark.parametrize(("name", "lives"), [("nvcc", True), ("wait", False)])
def test_a_silent_start_lives_while_it_compiles(
    name: str, lives: bool, started: Start, tmp_path: Path
) -> None:
    compiler = tmp_path / name
    compiler.write_text('#!/bin/sh\nsleep "$1"\n')
    compiler.chmod(0o755)
    launch = launch_of("compiles", compiler=str(compiler), seconds=7.0)
    limits = replace(PATIENT, silence_s=5.0)
    if lives:
        started(launch, limits=limits).check()
        return
    failure = failure_of(lambda: started(launch, limits=limits))
    assert failure.kind is FailureClass.START_TIMEOUT


def test_progress_without_line_ends_is_no_silence(started: Start) -> None:
    limits = replace(PATIENT, silence_s=5.0)
    server = started(launch_of("shows-progress", seconds=6.0), limits=limits)
    assert server.phases_s["start"] >= 6.0


def test_a_server_that_refuses_for_good_is_not_waited_for(started: Start) -> None:
    failure = failure_of(lambda: started(launch_of("refuses")))
    assert failure.kind is FailureClass.UNKNOWN
    assert "401" in failure.line


def test_a_cancelled_start_leaves_nothing(started: Start, place: Place) -> None:
    failure = failure_of(
        lambda: started(launch_of("silent"), cancelled=lambda: bool(marked(place.mark)))
    )
    assert failure.kind is FailureClass.KILLED
    assert marked(place.mark) == []


def test_a_second_server_appends_and_does_not_read_what_the_first_left(
    started: Start, place: Place
) -> None:
    failure_of(lambda: started(launch_of("dies-in-start")))
    server = started(launch_of())
    server.stop()
    assert place.log_path.read_text().count("stage load") == 2


def test_limits_of_a_fast_engine_leave_time_for_a_real_start(started: Start) -> None:
    limits = Limits(start_s=120, silence_s=30, stop_s=20, memory_free_s=20, probe_s=30)
    server = started(launch_of(), limits=limits, clock=Clock(1000.0))
    assert server.phases_s["start"] > 0
    server.stop()


def test_a_loopback_request_goes_past_a_proxy(
    started: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        proxy = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        started(launch_of()).stop()
