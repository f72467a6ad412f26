"""Signals, children and ports: the process behaves as SGLang's does."""

import os
import signal
import socket
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.engines.simulated_launch import READY, free_port, generate_body, launch, run, shape


def children_of(pid: int) -> dict[int, str]:
    """Return the living children of a process with their names."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            head, _, tail = (folder / "stat").read_text().rpartition(") ")
        except OSError:
            continue
        state, parent = tail.split()[:2]
        if int(parent) == pid and state != "Z":
            found[int(folder.name)] = head.partition("(")[2]
    return found


def gone(pid: int, limit_s: float = 30.0) -> bool:
    """Wait until a process is gone or a zombie."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, -2)])
def test_an_idle_server_ends_politely(tmp_path: Path, number: signal.Signals, status: int) -> None:
    with launch(tmp_path) as server:
        os.kill(server.process.pid, number)
        assert server.ended() == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_load_ends_it_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with launch(tmp_path, start_s=6000.0, wait="server_args=") as server:
        os.kill(server.process.pid, number)
        assert server.ended() == -number


def test_a_draining_server_finishes_its_requests_first(tmp_path: Path) -> None:
    with launch(tmp_path) as server:
        events = []
        body = {**generate_body("A long one.", 2000), "stream": True}
        asking = threading.Thread(target=lambda: events.extend(server.stream("/generate", body)))
        asking.start()
        while server.request("POST", "/flush_cache")[0] != 400:
            time.sleep(0.02)
        os.kill(server.process.pid, signal.SIGTERM)
        server.wait_for("SIGTERM received.")
        assert server.request("GET", "/health")[0] == 503
        assert server.ended() == 0
        asking.join(30)
    assert events[-1]["meta_info"]["completion_tokens"] == 2000
    assert "Gracefully exiting... Remaining number of requests 0." in server.log


def test_aborting_all_makes_a_stop_short(tmp_path: Path) -> None:
    with launch(tmp_path, scale=5.0) as server:
        body = {**generate_body("A very long one.", 100_000), "stream": True}
        asking = threading.Thread(target=server.stream, args=("/generate", body))
        asking.start()
        while server.request("POST", "/flush_cache")[0] != 400:
            time.sleep(0.02)
        assert server.request("POST", "/abort_request", {"abort_all": True})[0] == 200
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.ended() == 0
        asking.join(30)


def test_a_stubborn_server_ignores_signals_and_leaves_a_stray(tmp_path: Path) -> None:
    with launch(tmp_path, env={"SWEEPER_SIM_FAULT": "stubborn"}) as server:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(server.process.pid, number)
        assert server.request("GET", "/health")[0] == 200
        strays = [
            int(comm.parent.name)
            for comm in Path("/proc").glob("[0-9]*/comm")
            if _read(comm) == "sglang::stray"
            and str(server.port) in _read(comm.parent / "cmdline")
        ]
        assert len(strays) == 1
        os.kill(strays[0], signal.SIGTERM)
        assert os.getsid(strays[0]) != os.getsid(server.process.pid)
        assert not gone(strays[0], limit_s=0.3)
        os.kill(strays[0], signal.SIGKILL)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def test_children_die_with_the_parent(tmp_path: Path) -> None:
    env = {"SWEEPER_SIM_CHILDREN": "2"}
    with launch(tmp_path, env=env) as server:
        children = children_of(server.process.pid)
        assert sorted(children.values()) == [
            "sglang::detoken",
            "sglang::schedul",
            "sglang::schedul",
        ]
        assert {os.getpgid(pid) for pid in children} == {server.process.pid}
        os.kill(server.process.pid, signal.SIGKILL)
        assert server.ended() == -9
        assert all(gone(pid) for pid in children)


def test_a_parent_killed_during_the_imports_leaves_the_detokenizer(tmp_path: Path) -> None:
    env = {"SWEEPER_SIM_CHILDREN": "1"}
    with launch(tmp_path, env=env, start_s=600.0, scale=20.0, wait="server_args=") as server:
        children: dict[int, str] = {}
        while sorted(children.values()) != ["sglang::detoken", "sglang::schedul"]:
            time.sleep(0.02)
            children = children_of(server.process.pid)
        os.kill(server.process.pid, signal.SIGKILL)
        assert server.ended() == -9
        orphan = next(p for p, n in children.items() if n == "sglang::detoken")
        scheduler = next(p for p, n in children.items() if n == "sglang::schedul")
        assert gone(scheduler)
        assert not gone(orphan, limit_s=0.2)


def test_a_killed_scheduler_takes_the_server_with_it(tmp_path: Path) -> None:
    with launch(tmp_path, env={"SWEEPER_SIM_CHILDREN": "1"}) as server:
        children = children_of(server.process.pid)
        victim = next(p for p, n in children.items() if n == "sglang::schedul")
        os.kill(victim, signal.SIGKILL)
        assert server.ended() == -9
        assert f"Subprocess scheduler_0 (pid={victim}) crashed with exit code -9." in server.log
        assert all(gone(pid) for pid in children)


def test_a_scheduler_killed_during_the_start_ends_it_with_one(tmp_path: Path) -> None:
    env = {"SWEEPER_SIM_CHILDREN": "1"}
    with launch(tmp_path, env=env, start_s=600.0, scale=100.0, wait="Load weight begin") as server:
        children = children_of(server.process.pid)
        os.kill(next(p for p, n in children.items() if n == "sglang::schedul"), signal.SIGKILL)
        assert server.ended() == 1
    assert "Rank 0 scheduler died during initialization (exit code: -9)." in server.log


def test_a_taken_port_is_taken_for_oneself(tmp_path: Path) -> None:
    with launch(tmp_path) as first:
        with launch(tmp_path, port=first.port, wait=None) as second:
            assert second.ended() == 3
        assert first.request("GET", "/health")[0] == 200
    assert "[Errno 98] error while attempting to bind on address" in second.log
    assert READY in second.log


def test_a_port_held_by_something_mute_ends_in_a_kill(tmp_path: Path) -> None:
    with closing(socket.socket()) as mute:
        mute.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        port = int(mute.getsockname()[1])
        with launch(tmp_path, port=port, wait=None, scale=500.0) as server:
            assert server.ended() == -9
    assert "Initialization failed. warmup error" in server.log


def test_a_taken_rendezvous_port_fails_in_the_scheduler(tmp_path: Path) -> None:
    with closing(socket.socket()) as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with launch(tmp_path, "--nccl-port", str(port), wait=None) as server:
            assert server.ended() == -9
    assert "EADDRINUSE" in server.log


def test_nothing_answers_while_it_loads_and_health_is_503_while_it_warms_up(
    tmp_path: Path,
) -> None:
    with launch(
        tmp_path, *shape(2, 1, 3), start_s=100.0, scale=20.0, wait="Load weight begin"
    ) as server:
        with pytest.raises(ConnectionError):
            server.request("GET", "/health")
        server.wait_for("Uvicorn running on")
        seen = [server.request("GET", "/health")[0]]
        while seen[-1] != 200:
            time.sleep(0.01)
            seen.append(server.request("GET", "/health")[0])
        assert set(seen) <= {503, 200}
        assert READY in server.log


def test_a_whole_run_needs_no_more_than_a_port(tmp_path: Path) -> None:
    status, error = run(["--model-path", "m", "--port", str(free_port())], {
        "SWEEPER_SIM_FAULT": "port_conflict", "SWEEPER_SIM_TIME_SCALE": "100",
    })  # fmt: skip
    assert status == 3
    assert "SIMULATED SERVER" in error
