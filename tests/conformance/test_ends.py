"""How a server ends, by command line, by signal and by a dead child: the same on both kinds."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from sweeper.engines.base import Ending
from sweeper.engines.sglang import SGLang
from sweeper.errors import FailureClass, Stage
from sweeper.records import FlagValue
from tests.conformance.kinds import KINDS, NGRAM, START_S, Kind, command, environment, launch
from tests.conformance.tree import children, cpu_s, living, wait_gone
from tests.engines.simulated_launch import free_port

pytestmark = pytest.mark.parametrize("kind", KINDS)
ENGINE = SGLang()


@pytest.mark.parametrize(
    ("flags", "status", "failure", "words"),
    [
        ({"no-such-flag": True}, 2, FailureClass.BAD_FLAG, "unrecognized arguments"),
        (
            {"speculative-algorithm": "BOGUS"},
            1,
            FailureClass.CONFIG_REJECTED,
            "ValueError: Unknown speculative algorithm name: BOGUS",
        ),
    ],
    ids=["usage", "rejected"],
)
def test_a_wrong_command_line_ends_with_its_status_and_reason(
    kind: Kind,
    flags: dict[str, FlagValue],
    status: int,
    failure: FailureClass,
    words: str,
) -> None:
    done = subprocess.run(
        command(kind, free_port(), flags),
        env=environment(kind, {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == status, done.stdout.decode()[-2000:]
    reader = ENGINE.log_reader()
    reader.feed(done.stdout)
    found = reader.failure(Ending(exit_code=status))
    assert found is not None
    assert (found.kind, found.stage) == (failure, Stage.ARGS)
    assert words in found.line


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, -2)])
def test_an_idle_server_ends_politely_and_alone(
    kind: Kind, number: signal.Signals, status: int, tmp_path: Path
) -> None:
    with launch(kind, tmp_path, NGRAM) as server:
        family = children(server.process.pid).keys() | {server.process.pid}
        assert len(family) >= 3
        begun = time.monotonic()
        os.kill(server.process.pid, number)
        assert server.ended(START_S) == status
        took_s = time.monotonic() - begun
        assert wait_gone(set(family))
    # SIGTERM looks for running requests every few seconds, SIGINT does not.
    assert (took_s > 2.5) if number is signal.SIGTERM else (took_s < 60)
    reader = ENGINE.log_reader()
    reader.feed(server.log.encode())
    assert reader.stage is Stage.SHUTDOWN
    assert reader.failure(Ending(exit_code=status)) is None


def test_a_killed_scheduler_takes_the_server_with_it(kind: Kind, tmp_path: Path) -> None:
    with launch(kind, tmp_path, {}) as server:
        family = children(server.process.pid)
        victim = next(pid for pid, name in family.items() if name.startswith("sglang::schedul"))
        os.kill(victim, signal.SIGKILL)
        assert server.ended(START_S) == -9
        assert wait_gone(set(family))
    assert f"Subprocess scheduler_0 (pid={victim}) crashed with exit code -9." in server.log
    assert "SIGQUIT received." in server.log
    reader = ENGINE.log_reader()
    reader.feed(server.log.encode())
    found = reader.failure(Ending(exit_code=-9))
    assert found is not None
    assert found.kind is FailureClass.KILLED
    assert "crashed with exit code -9" in found.line


def test_a_server_killed_during_its_imports_leaves_children_behind(
    kind: Kind, tmp_path: Path
) -> None:
    env = {"SWEEPER_SIM_START_S": "600"} if kind.name == "simulated" else {}
    with launch(kind, tmp_path, {}, wait="server_args=", env=env) as server:
        end = time.monotonic() + START_S
        # A child that has not got its orders yet ends with the pipe that they come through.
        busy_s = 0.5 if kind.name == "real" else 0.0
        while time.monotonic() < end:
            family = children(server.process.pid)
            if len(family) >= 2 and max(map(cpu_s, family)) >= busy_s:
                break
            time.sleep(0.02)
        os.kill(server.process.pid, signal.SIGKILL)
        assert server.ended(START_S) == -9
        # Children ask to die with their parent only when their imports are done: until then they
        # live on, and the detokenizer does for ever. Here the group is killed at the end.
        assert living(set(family)) != set()
