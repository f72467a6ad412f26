"""Signals: Ctrl-C before there is any server, and a SIGHUP that is not to count."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeper.serving.supervisor import all_processes
from tests.sweeping import servers_of, space_text, store_of, wait_for


def interrupted(
    space: Path, ready: Callable[[int], bool], what: str
) -> subprocess.CompletedProcess[str]:
    """Run the command until `ready` says so of its process, interrupt it, and return its end."""
    command = [sys.executable, "-m", "sweeper.search", str(space), "--plan"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as driver:
        try:
            wait_for(lambda: ready(driver.pid) or driver.poll() is not None, what)
            driver.send_signal(signal.SIGINT)
            out, errors = driver.communicate(timeout=60)
        finally:
            driver.kill()
    return subprocess.CompletedProcess(command, driver.returncode, out, errors)


@pytest.mark.parametrize("module", ["_socket", "numpy", "pyarrow"])
def test_while_modules_load(tmp_path: Path, module: str) -> None:
    space = tmp_path / "space.yaml"
    space.write_text(space_text("interrupted", steps=list(range(1, 9))), encoding="utf-8")
    done = interrupted(
        space,
        lambda pid: f"/{module}" in Path(f"/proc/{pid}/maps").read_text(),
        f"{module} to load",
    )
    assert done.returncode in (-signal.SIGINT, 130)
    assert done.stderr == ""


def test_while_the_engine_is_asked(tmp_path: Path) -> None:
    python = tmp_path / "python-that-sleeps"
    python.write_text("#!/bin/sh\nexec sleep 100\n", encoding="utf-8")
    python.chmod(0o755)
    space = tmp_path / "space.yaml"
    text = space_text("interrupted").replace("kind: simulated", "kind: sglang")
    command = f"command: [{python}, -m, sglang.launch_server]"
    space.write_text(text.replace("model: /models/target", f"{command}\n  model: /m"), "utf-8")

    def asked(pid: int) -> list[int]:
        return [stat.pid for stat in all_processes() if stat.parent == pid and stat.alive]

    sleepers: list[int] = []

    def is_asked(pid: int) -> bool:
        sleepers[:] = asked(pid)
        return bool(sleepers)

    done = interrupted(space, is_asked, "the engine to be asked")
    assert sleepers
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert not any(stat.pid in sleepers and stat.alive for stat in all_processes())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nohup") is None, reason="there is no nohup command")
def test_a_sweep_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    study = f"nohup-{os.getpid()}"
    space = tmp_path / "space.yaml"
    space.write_text(space_text(study, steps=[1], launches=2), encoding="utf-8")
    words = ["nohup", sys.executable, "-m", "sweeper.search", str(space), "--executor", "inline"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*words, "--runs", str(tmp_path / "runs")], stdout=pipe, stderr=pipe, text=True
    ) as driver:
        try:
            wait_for(lambda: bool(servers_of(study)) or driver.poll() is not None, "a server")
            driver.send_signal(signal.SIGHUP)
            out, errors = driver.communicate(timeout=60)
        finally:
            driver.kill()
    assert driver.returncode == 0, errors
    assert len(store_of(tmp_path, study).records()) == 2, out
