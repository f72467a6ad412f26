"""A ready server: asked, dying, stopped, and its memory given back."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sweeper.clock import Clock
from sweeper.engines.base import ControlRequest
from sweeper.engines.sglang import SGLang
from sweeper.errors import Failure, FailureClass, LaunchFailed, ServerDied, Stage
from sweeper.records import Launch
from sweeper.serving import FakeGpus, NoGpus, Place, ProcessId, start
from sweeper.serving.ports import accepts
from sweeper.serving.supervisor import all_processes
from tests.serving.odd_server import hold_memory
from tests.serving.plain import launch_of
from tests.serving.watching import PATIENT, Start, failure_of, is_dead, marked, wait_for


def test_a_server_becomes_ready_and_is_gone_after_stop(started: Start, place: Place) -> None:
    stages: list[Stage] = []
    server = started(launch_of(), on_stage=stages.append)
    assert stages[-1] is Stage.READY
    assert server.facts.version == "1"
    assert server.phases_s["start"] == pytest.approx(
        sum(spent for name, spent in server.phases_s.items() if "." in name)
    )
    server.check()
    answer = server.request(ControlRequest(method="GET", path="/health"))
    assert (answer.status, answer.json) == (200, {"status": "healthy"})

    report = server.stop()

    assert report.memory_held_by == ()
    assert marked(place.mark) == []
    assert not accepts(int(server.url.rpartition(":")[2]))
    assert server.stop() is report
    assert "aborted" in place.log_path.read_text()


def test_a_server_that_stands_still_while_it_compiles_says_so(
    started: Start, place: Place, tmp_path: Path
) -> None:
    failure = Failure(kind=FailureClass.HANG, stage=Stage.SERVING, line="no chunk for 2 s")
    idle = started(launch_of())
    assert idle.standing_still(failure) == failure
    assert "MainThread" in place.log_path.with_suffix(".stacks").read_text(encoding="utf-8")
    idle.stop()
    compiler = tmp_path / "cicc"
    compiler.write_text('#!/bin/sh\nsleep "$1"\n')
    compiler.chmod(0o755)
    busy = started(launch_of("compiles-when-ready", compiler=str(compiler)))
    assert "no chunk for 2 s; it runs cicc" in busy.standing_still(failure).line


def test_a_death_right_after_ready_is_seen_by_check(started: Start, place: Place) -> None:
    def start_and_check() -> None:
        server = started(launch_of("dies-when-ready"))
        for _ in range(6000):
            server.check()
            time.sleep(0.01)

    # Its end may be heard before `start` returns.
    with pytest.raises((LaunchFailed, ServerDied)) as caught:
        start_and_check()
    assert caught.value.failure.kind is FailureClass.CRASH_KERNEL
    assert caught.value.failure.exit_code == 3
    assert marked(place.mark) == []


def test_a_death_during_a_request_is_no_connection_error(started: Start) -> None:
    server = started(launch_of())
    with pytest.raises(ServerDied) as caught:
        server.request(ControlRequest(method="GET", path="/die"))
    assert caught.value.failure.exit_code == 4
    assert caught.value.failure.stage is Stage.SERVING


def test_an_end_in_good_order_that_nobody_here_asked_for_came_from_outside(
    started: Start,
) -> None:
    server = started(launch_of())
    with pytest.raises(ServerDied) as caught:
        server.request(ControlRequest(method="GET", path="/leave"))
    failure = caught.value.failure
    assert failure.kind is FailureClass.KILLED
    assert failure.exit_code == 0
    assert "was ended from outside" in failure.line


def test_a_request_has_its_own_limit(started: Start) -> None:
    server = started(launch_of())
    with pytest.raises(TimeoutError):
        server.request(ControlRequest(method="GET", path="/slow"), timeout_s=0.2)
    server.check()


def test_a_server_whose_supervisor_is_killed_is_dead(started: Start, place: Place) -> None:
    server = started(launch_of("leaves-a-daemon"))
    supervisor = next(stat.parent for stat in all_processes() if stat.pid == server.pid)
    os.kill(supervisor, signal.SIGKILL)
    assert wait_for(lambda: is_dead(server))
    with pytest.raises(ServerDied) as caught:
        server.check()
    assert caught.value.failure.kind is FailureClass.KILLED
    assert marked(place.mark) == []


def test_a_server_ends_with_what_it_watches(started: Start, place: Place) -> None:
    with subprocess.Popen(["sleep", "600"]) as driver:
        watch = (ProcessId.of(driver.pid),)
        server = started(launch_of(), place=replace(place, watch=watch))
        driver.kill()
    assert wait_for(lambda: is_dead(server))
    assert marked(place.mark) == []


def test_a_server_that_ignores_the_signal_is_killed_with_its_daemons(
    started: Start, place: Place
) -> None:
    server = started(launch_of("ignores-sigterm"), limits=replace(PATIENT, stop_s=0.2))
    report = server.stop()
    assert report.stop_s >= 0.2
    assert marked(place.mark) == []


def test_a_context_manager_stops_on_an_error(started: Start, place: Place) -> None:
    with pytest.raises(KeyError), started(launch_of("leaves-a-daemon")):
        raise KeyError
    assert marked(place.mark) == []


def test_stop_waits_until_the_memory_is_back(started: Start, place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "gpus"
    server = started(
        launch_of(gpu_folder=str(folder)),
        gpus=FakeGpus(1, folder, lag_s=0.3),
        place=replace(place, gpu_ids=(0,)),
    )
    report = server.stop()
    assert report.memory_held_by == ()
    assert report.memory_free_s >= 0.25


def test_memory_that_does_not_come_back_is_named(
    started: Start, place: Place, tmp_path: Path
) -> None:
    folder = tmp_path / "gpus"
    with subprocess.Popen(["sleep", "600"]) as other:
        server = started(
            launch_of(gpu_folder=str(folder)),
            gpus=FakeGpus(1, folder),
            place=replace(place, gpu_ids=(0,)),
            limits=replace(PATIENT, memory_free_s=0.2),
        )
        hold_memory(folder, 0, 5000, other.pid)
        report = server.stop()
        other.kill()
    assert report.memory_held_by == (f"GPU 0: 5000 MiB held by sleep (pid {other.pid})",)
    assert report.memory_free_s >= 0.2


def test_a_full_gpu_is_no_place_to_start(started: Start, place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "gpus"
    with subprocess.Popen(["sleep", "600"]) as other:
        hold_memory(folder, 0, 120_000, other.pid)
        failure = failure_of(
            lambda: started(
                launch_of(),
                gpus=FakeGpus(1, folder),
                place=replace(place, gpu_ids=(0,)),
                limits=replace(PATIENT, memory_free_s=0.1),
            )
        )
        other.kill()
    assert failure.kind is FailureClass.GPU_MEMORY_NOT_FREE
    assert str(other.pid) in failure.line
    assert not place.log_path.exists()


def test_memory_of_others_reaches_the_reader_of_the_log(
    started: Start, place: Place, tmp_path: Path
) -> None:
    folder = tmp_path / "gpus"
    with subprocess.Popen(["sleep", "600"]) as other:
        hold_memory(folder, 0, 5000, other.pid)
        failure = failure_of(
            lambda: started(
                launch_of("dies-in-start", gpu_folder=str(folder)),
                gpus=FakeGpus(1, folder),
                place=replace(place, gpu_ids=(0,)),
            )
        )
        other.kill()
    assert failure.kind is FailureClass.GPU_MEMORY_NOT_FREE


def test_the_simulated_sglang_is_started_and_stopped(place: Place) -> None:
    launch = Launch(
        engine="sglang",
        command=(sys.executable, "-m", "sweeper.engines.simulated"),
        model="/models/target",
        gpus=0,
        flags={"tp-size": 8},
        env={"SWEEPER_SIM_TIME_SCALE": "1000"},
        simulated=True,
    )
    server = start(
        SGLang(), launch, place=place, gpus=NoGpus(), limits=PATIENT, clock=Clock(1000.0)
    )
    with server:
        assert server.facts.simulated
        assert server.request(SGLang().flush_request()).status == 200
    assert marked(place.mark) == []
