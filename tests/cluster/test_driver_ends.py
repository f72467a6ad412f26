"""The command where something else decides over its life: `timeout`, and PID 1 of a container."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeper.records import TrialState
from sweeper.serving.supervisor import all_processes
from tests.cluster.running import running_sweep
from tests.cluster.stages import Family, wait_for
from tests.sweeping import space_text, store_of

pytestmark = pytest.mark.slow
STUDY = f"ends-{os.getpid()}"
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    text = space_text(STUDY, drop="speculative-*", base="{}", steps=[1, 2], children=1, launches=9)
    (tmp_path / "space.yaml").write_text(text)
    family = Family(STUDY)
    yield family
    family.kill()


def command(folder: Path) -> list[str]:
    words = [sys.executable, "-m", "sweeper.search", str(folder / "space.yaml")]
    return [*words, "--executor", "inline", "--runs", str(folder / "runs")]


def check_goes_on(folder: Path, family: Family) -> None:
    """Nothing is left, and the same command ends the sweep."""
    family.wait_gone()
    done = subprocess.run(command(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    records = store_of(folder, STUDY).records()
    assert [r.state for r in records] == [TrialState.COMPLETE] * 3
    family.wait_gone()


def can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, check=False)
    return tried.returncode == 0


@pytest.mark.parametrize("how", ["TERM", "KILL"])
@pytest.mark.skipif(shutil.which("timeout") is None, reason="there is no timeout command")
def test_a_sweep_under_timeout_leaves_nothing_and_goes_on(
    how: str, tmp_path: Path, family: Family
) -> None:
    words = ["timeout", f"--signal={how}", "4", *command(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode in (124, -signal.SIGKILL, 128 + signal.SIGKILL, 0), done.stderr
    assert "Traceback" not in done.stderr
    check_goes_on(tmp_path, family)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.skipif(not can_unshare(), reason="no new process namespace can be made here")
def test_a_sweep_as_the_first_process_of_a_container_ends_with_its_servers(
    number: signal.Signals, tmp_path: Path, family: Family
) -> None:
    with subprocess.Popen(
        [*UNSHARE, *command(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as container:
        try:
            wait_for(lambda: bool(family.leaders()), "the first server")
            (first,) = [s.pid for s in all_processes() if s.parent == container.pid and s.alive]
            os.kill(first, number)
            out, _ = container.communicate(timeout=60)
        finally:
            container.kill()
    if number is not signal.SIGKILL:
        assert container.returncode == 128 + number, out
        assert "to go on: python -m sweeper.search" in out
    assert "Traceback" not in out
    check_goes_on(tmp_path, family)


@pytest.mark.timeout(400)
def test_a_sweep_that_loses_its_last_slot_leaves_the_results_that_it_has(tmp_path: Path) -> None:
    study = f"slotless-{os.getpid()}"
    with running_sweep(tmp_path, study, tokens=20) as sweep:
        sweep.until(r"^\[3/60\b")
        while sweep.process.poll() is None:
            for pid in sweep.pids():
                with contextlib.suppress(OSError):
                    if b"ray::Slot" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
    told = "".join(sweep.lines)
    assert sweep.process.returncode == 1
    assert "stopped: no slot is left" in told
    assert "launch command: " in told
    folder = store_of(tmp_path, study).folder
    assert "--model-path" in (folder / "best.sh").read_text()
    assert (folder / "report.html").exists()
