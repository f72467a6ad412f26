"""Who outlives whom: nobody, whatever ends first. Real processes only."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sweeper.serving import supervisor
from sweeper.serving.processes import ProcessId, sweep, sweep_marked
from sweeper.serving.supervised import Job, Supervised

HERE = Path(__file__).parent
FAMILY = (sys.executable, "-I", "-S", str(HERE / "family.py"))
#: Two seconds are promised; a machine that runs other tests gets more.
GONE_S = 10.0
SETUP_S = 60.0


def wait_for(done: Callable[[], bool], limit_s: float) -> bool:
    end = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def members_in(path: Path) -> dict[str, ProcessId]:
    assert wait_for(path.exists, SETUP_S), "the family did not come up"
    rows = [line.split() for line in path.read_text().splitlines()]
    return {role: ProcessId(int(pid), int(starttime)) for role, pid, starttime in rows}


def still_alive(members: dict[str, ProcessId]) -> list[str]:
    wait_for(lambda: not any(one.alive() for one in members.values()), GONE_S)
    return [role for role, one in members.items() if one.alive()]


def job(tmp_path: Path, *argv: str, **changes: object) -> Job:
    fields: dict[str, object] = {
        "argv": argv,
        "env": {"PATH": os.environ["PATH"]},
        "cwd": tmp_path,
        "log_path": tmp_path / "server.log",
        "mark": f"test-{tmp_path.name}-{os.getpid()}",
    }
    return Job(**(fields | changes))  # type: ignore[arg-type]


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours that is no server's."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def owner_closes_the_pipe(owned: Supervised, _: subprocess.Popen[bytes]) -> str | None:
    owned.close()
    return None


def owner_says_kill(owned: Supervised, _: subprocess.Popen[bytes]) -> str | None:
    owned.kill()
    return "kill"


def leader_is_killed(owned: Supervised, _: subprocess.Popen[bytes]) -> str | None:
    assert owned.leader is not None
    os.kill(owned.leader.pid, signal.SIGKILL)
    return "exited"


def supervisor_is_told_to_end(owned: Supervised, _: subprocess.Popen[bytes]) -> str | None:
    os.kill(owned.supervisor, signal.SIGTERM)
    return "signal"


def supervisor_is_killed(owned: Supervised, _: subprocess.Popen[bytes]) -> str | None:
    os.kill(owned.supervisor, signal.SIGKILL)
    return "lost"


def watched_process_ends(_: Supervised, watched: subprocess.Popen[bytes]) -> str | None:
    watched.kill()
    return "watched"


@pytest.mark.parametrize(
    "event",
    [
        owner_closes_the_pipe,
        owner_says_kill,
        leader_is_killed,
        supervisor_is_told_to_end,
        supervisor_is_killed,
        watched_process_ends,
    ],
)
def test_nothing_of_a_server_outlives(
    event: Callable[[Supervised, subprocess.Popen[bytes]], str | None],
    tmp_path: Path,
    bystander: subprocess.Popen[bytes],
) -> None:
    watch = (ProcessId.of(bystander.pid),)
    owned = Supervised(job(tmp_path, *FAMILY, str(tmp_path / "members"), watch=watch))
    assert owned.wait_until(lambda: owned.leader is not None, SETUP_S)
    members = members_in(tmp_path / "members")
    assert members["leader"] == owned.leader

    why = event(owned, bystander)

    if why is not None:
        owned.wait_until(lambda: owned.clean is not None, GONE_S)
        assert owned.clean == why
        owned.close()
    assert still_alive(members) == []
    assert wait_for(lambda: not Path(f"/proc/{owned.supervisor}").exists() or _is_zombie(owned), 5)


def _is_zombie(owned: Supervised) -> bool:
    stat = supervisor.read_stat(owned.supervisor)
    return stat is None or not stat.alive


def test_nothing_of_a_server_outlives_a_killed_owner(tmp_path: Path) -> None:
    mark = f"test-{tmp_path.name}-{os.getpid()}"
    command = [sys.executable, "-m", "tests.serving.owner", str(tmp_path / "log"), mark]
    with subprocess.Popen(
        [*command, *FAMILY, str(tmp_path / "members")],
        stdout=subprocess.PIPE,
        cwd=HERE.parents[1],
    ) as owner:
        members = members_in(tmp_path / "members")
        owner.kill()
    assert still_alive(members) == []


def test_a_deadline_ends_a_server(tmp_path: Path) -> None:
    owned = Supervised(job(tmp_path, "sleep", "600", deadline_s=0.2))
    assert owned.wait_until(lambda: owned.clean is not None, SETUP_S)
    assert owned.clean == "deadline"
    assert owned.leader is not None
    assert not owned.leader.alive()
    owned.close()


def test_the_family_of_a_leader_that_ends_by_itself_is_killed(tmp_path: Path) -> None:
    script = f"{' '.join(FAMILY)} {tmp_path}/members & while ! test -e {tmp_path}/members; do sleep 0.05; done; exit 7"
    owned = Supervised(job(tmp_path, "sh", "-c", script))
    assert owned.wait_until(lambda: owned.clean is not None, SETUP_S)
    assert (owned.exit_code, owned.clean) == (7, "exited")
    assert still_alive(members_in(tmp_path / "members")) == []
    owned.close()


@pytest.mark.parametrize("how", ["ended", "replaced"])
def test_a_server_is_not_started_for_a_watched_process_that_is_gone(
    how: str, tmp_path: Path
) -> None:
    with subprocess.Popen(["true"]) as process:
        ended = ProcessId.of(process.pid)
    replaced = ProcessId(os.getpid(), 1)  # the pid lives; it was another process's then
    watch = ({"ended": ended, "replaced": replaced}[how],)
    owned = Supervised(job(tmp_path, "touch", str(tmp_path / "ran"), watch=watch))
    assert owned.wait_until(lambda: owned.clean is not None, SETUP_S)
    assert owned.clean == "watched"
    assert owned.leader is None
    owned.close()
    assert not (tmp_path / "ran").exists()


def test_a_signal_reaches_the_leader_only(tmp_path: Path) -> None:
    script = (
        "import signal, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(child.poll() is None and 42))\n"
        "open(sys.argv[1], 'w').close()\n"
        "time.sleep(600)\n"
    )
    owned = Supervised(job(tmp_path, sys.executable, "-c", script, str(tmp_path / "up")))
    assert wait_for((tmp_path / "up").exists, SETUP_S)
    owned.signal(signal.SIGTERM)
    assert owned.wait_until(lambda: owned.clean is not None, SETUP_S)
    assert owned.exit_code == 42
    owned.close()


def test_a_signal_that_the_owner_blocks_reaches_the_leader_all_the_same(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(42))\n"
        "open(sys.argv[1], 'w').close()\n"
        "time.sleep(600)\n"
    )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGCHLD))
    try:
        owned = Supervised(job(tmp_path, sys.executable, "-c", script, str(tmp_path / "up")))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert wait_for((tmp_path / "up").exists, SETUP_S)
    owned.signal(signal.SIGINT)
    assert owned.wait_until(lambda: owned.clean is not None, SETUP_S)
    assert owned.exit_code == 42
    owned.close()


def test_a_command_that_is_not_there_is_said(tmp_path: Path) -> None:
    owned = Supervised(job(tmp_path, "no-such-program"))
    assert owned.wait_until(lambda: owned.clean is not None, SETUP_S)
    assert owned.not_started is not None
    number, text = owned.not_started
    assert number == 2
    assert "no-such-program" in text
    owned.close()


def test_output_is_appended_and_the_environment_is_the_jobs(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("before\n")
    owned = Supervised(job(tmp_path, "env", env={"PATH": os.environ["PATH"], "ODD": "a=b\nc é"}))
    assert owned.wait_until(lambda: owned.clean is not None, SETUP_S)
    owned.close()
    text = (tmp_path / "server.log").read_text()
    assert text.startswith("before\n")
    assert "ODD=a=b\nc é\n" in text
    names = {line.partition("=")[0] for line in text.splitlines()[1:]} - {"c é"}
    assert names == {"PATH", "ODD", supervisor.MARK}


def test_an_owner_that_says_nothing_starts_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", supervisor.__file__],
        input=b"",
        capture_output=True,
        check=True,
        timeout=SETUP_S,
    )
    assert done.stdout == b""
    assert done.stderr == b""


def test_a_job_line_of_any_length_is_read(tmp_path: Path) -> None:
    words = ["é" * 10_000] * 50  # a megabyte; a pipe holds 64 KiB of it
    owned = Supervised(job(tmp_path, "sh", "-c", "exit 3", *words))
    assert owned.wait_until(lambda: owned.clean is not None, SETUP_S)
    assert owned.exit_code == 3
    owned.close()


def test_leftovers_are_found_by_their_marks_and_nothing_else_is(
    tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    mark = f"test-{tmp_path.name}-{os.getpid()}"
    with (logs / "server.log").open("ab") as log:
        leftover = subprocess.Popen(
            [*FAMILY, str(tmp_path / "members")],
            stdout=log,
            stderr=log,
            env=os.environ | {supervisor.MARK: f"{mark}/7"},
            start_new_session=True,
        )
    # Reads the log, as a person does, and must not be taken for a server.
    with subprocess.Popen(
        ["tail", "-f", str(logs / "server.log")], stdout=subprocess.DEVNULL
    ) as reader:
        members = members_in(tmp_path / "members")
        killed = sweep_marked(f"{mark}/", logs=logs)
        leftover.wait()
        assert killed == len(members)
        assert still_alive(members) == []
        assert sweep_marked(f"{mark}/", logs=logs) == 0
        assert reader.poll() is None
        reader.kill()
    assert bystander.poll() is None


def test_a_sweep_leaves_servers_alone_whose_supervisor_lives(tmp_path: Path) -> None:
    mark = f"test-{tmp_path.name}-{os.getpid()}"
    owned = Supervised(job(tmp_path, *FAMILY, str(tmp_path / "members"), mark=f"{mark}/1"))
    members = members_in(tmp_path / "members")
    assert sweep_marked(f"{mark}/", logs=tmp_path / "server.log") == 0
    assert all(one.alive() for one in members.values())
    owned.close()
    assert still_alive(members) == []


def test_a_sweep_leaves_a_server_alone_that_starts_in_the_middle_of_it(tmp_path: Path) -> None:
    mark = f"test-{tmp_path.name}-{os.getpid()}/"
    late: list[subprocess.Popen[bytes]] = []

    def spare() -> set[int]:
        """Have the late one come just after its owner would have been seen."""
        if not late:
            environment = {**os.environ, supervisor.MARK: f"{mark}1"}
            late.append(subprocess.Popen(["sleep", "600"], env=environment))
        return set()

    killed = sweep(lambda found: found.startswith(mark), lambda _: False, spare)
    assert late[0].poll() is None
    assert killed == 0
    late[0].kill()
    late[0].wait()


def test_a_sweep_without_a_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="empty prefix"):
        sweep_marked("")
