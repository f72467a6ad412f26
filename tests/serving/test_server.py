"""Starting, asking and stopping real processes that behave badly."""

import argparse
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from sweeper.clock import Clock
from sweeper.engines.base import ControlRequest
from sweeper.errors import Failure, FailureClass, LaunchFailed, ServerDied, Stage
from sweeper.records import Launch, Limits
from sweeper.serving import (
    FakeGpus,
    Gpus,
    NoGpus,
    Place,
    Ports,
    ProcessId,
    Server,
    reserve_ports,
    start,
)
from sweeper.serving.ports import accepts
from sweeper.serving.supervisor import MARK, all_processes
from tests.serving.odd_server import Handler, hold_memory
from tests.serving.plain import PlainEngine, launch_of

#: Long enough that a busy machine passes none of them by accident.
PATIENT = Limits(
    start_s=120, silence_s=120, stop_s=60, memory_free_s=60, progress_s=60, probe_s=60
)
Start = Callable[..., Server]


def marked(mark: str) -> list[int]:
    """Pids of living processes that carry the mark."""
    found = []
    for stat in all_processes():
        try:
            entries = Path(f"/proc/{stat.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if stat.alive and f"{MARK}={mark}".encode() in entries:
            found.append(stat.pid)
    return found


def wait_for(done: Callable[[], bool], limit_s: float = 60.0) -> bool:
    end = time.monotonic() + limit_s
    while not done() and time.monotonic() < end:
        time.sleep(0.01)
    return done()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(
        gpu_ids=(),
        log_path=tmp_path / "logs" / "server.log",
        mark=f"test-{tmp_path.name}-{os.getpid()}",
    )


@pytest.fixture
def started(place: Place) -> Iterator[Start]:
    """`start` with patient limits; whatever it left alive fails the test."""
    servers: list[Server] = []

    def begin(
        launch: Launch,
        *,
        limits: Limits = PATIENT,
        clock: Clock = Clock(),  # noqa: B008
        gpus: Gpus = NoGpus(),  # noqa: B008
        place: Place = place,
        **more: object,
    ) -> Server:
        server = start(
            PlainEngine(),
            launch,
            place=place,
            gpus=gpus,
            limits=limits,
            clock=clock,
            **more,  # type: ignore[arg-type]
        )
        servers.append(server)
        return server

    yield begin
    for server in servers:
        server.stop()
    assert wait_for(lambda: not marked(place.mark)), "something of the server lives"


def failure_of(begin: Callable[[], object]) -> Failure:
    with pytest.raises(LaunchFailed) as caught:
        begin()
    return caught.value.failure


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


class StrangerServer:
    """A server of someone else on our port, which answers all that ours would."""

    def __init__(self, block: Ports) -> None:
        self._block = block
        self._server: ThreadingHTTPServer | None = None

    def take_port(self, _: object = None) -> None:
        if self._server is None:

            class Quiet(Handler):
                def log_message(self, format: str, *args: object) -> None:
                    pass

            Quiet.arguments = argparse.Namespace(port=self._block.port, fault="none")
            self._server = ThreadingHTTPServer(("127.0.0.1", self._block.port), Quiet)
            threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def leave(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


@pytest.fixture
def stranger() -> Iterator[tuple[Ports, StrangerServer]]:
    block = reserve_ports()
    server = StrangerServer(block)
    yield block, server
    server.leave()


def test_a_port_that_is_taken_before_is_a_port_conflict(
    started: Start, stranger: tuple[Ports, StrangerServer], place: Place
) -> None:
    block, server = stranger
    server.take_port()
    failure = failure_of(lambda: started(launch_of(), block=block))
    assert failure.kind is FailureClass.PORT_CONFLICT
    assert str(block.port) in failure.line
    assert not place.log_path.exists()


def test_a_stranger_that_answers_is_not_taken_for_the_server(
    started: Start, stranger: tuple[Ports, StrangerServer], place: Place
) -> None:
    block, server = stranger
    failure = failure_of(
        lambda: started(launch_of("leaves-its-port"), block=block, on_stage=server.take_port)
    )
    assert failure.kind is FailureClass.FOREIGN_SERVER
    assert marked(place.mark) == []


def test_a_server_that_loses_its_port_names_the_stranger(
    started: Start, stranger: tuple[Ports, StrangerServer]
) -> None:
    block, server = stranger
    launch = launch_of("loses-its-port", seconds=0.2)
    failure = failure_of(lambda: started(launch, block=block, on_stage=server.take_port))
    assert failure.kind is FailureClass.FOREIGN_SERVER


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


def is_dead(server: Server) -> bool:
    try:
        server.check()
    except ServerDied:
        return True
    return False


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
