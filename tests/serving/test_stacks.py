"""The stacks of a server that stands still: read from outside, secrets hidden, never in the way."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeper.serving.stacks import note_stacks, program

STANDS_STILL = """
import sys, threading, time

def wait_for_a_rank_that_never_comes():
    print("there", flush=True)
    time.sleep(600)

threading.Thread(target=time.sleep, args=(600,), name="helper", daemon=True).start()
wait_for_a_rank_that_never_comes()
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    """A process with a Python child that stands still, as a supervisor has."""
    command = [sys.executable, "-c", STANDS_STILL, "--api-key", "very-secret-word"]
    code = f"import subprocess; subprocess.run({command!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    yield process
    subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)
    process.wait()
    process.stdout.close()


def test_every_thread_of_every_process_is_there(
    parent: subprocess.Popen[str], tmp_path: Path
) -> None:
    into = tmp_path / "000001.stacks"
    note_stacks(into, root=parent.pid, command=[sys.executable, "-m", "sglang.launch_server"])
    text = into.read_text(encoding="utf-8")
    assert "wait_for_a_rank_that_never_comes" in text
    assert '"helper"' in text
    assert "very-secret-word" not in text


def test_py_spy_is_looked_for_beside_the_servers_interpreter(tmp_path: Path) -> None:
    own = tmp_path / "py-spy"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    assert program(str(tmp_path / "python3")) == str(own)
    assert program("/nowhere/python3") == str(Path(sys.executable).parent / "py-spy")


@pytest.mark.parametrize(
    "script", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho broken >&2; exit 1\n", "not a program"]
)
def test_what_cannot_be_read_is_said_and_raises_nothing(
    script: str, parent: subprocess.Popen[str], tmp_path: Path
) -> None:
    (tmp_path / "py-spy").write_text(script)
    (tmp_path / "py-spy").chmod(0o755)
    into = tmp_path / "000001.stacks"
    note_stacks(into, root=parent.pid, command=[str(tmp_path / "python3")])
    assert "process " in into.read_text(encoding="utf-8")
    note_stacks(tmp_path / "no" / "folder", root=parent.pid, command=[str(tmp_path / "python3")])
