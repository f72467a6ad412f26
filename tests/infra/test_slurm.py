"""The Slurm script, run to its end on this machine with programs that play Slurm's."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sweeper.records import TrialState
from sweeper.store import Store
from tests.cluster.running import space_text

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent.parent
#: Each runs on this machine, whatever node it is for; Ray is told to keep to loopback.
PROGRAMS = {
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"',
    # One node: Ray refuses more where it keeps to loopback.
    "scontrol": "echo node-a",
    "hostname": "echo 127.0.0.1 10.1.2.3",
}


def test_a_sweep_runs_on_the_jobs_node_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    job = 700_000 + os.getpid()
    space = tmp_path / "space.yaml"
    # Ray finds no GPUs here, so the servers are of a kind that needs none.
    text = space_text("slurm", scale=1000, tokens=20, repeats=1, launches=2, gpus=0, tp=1)
    space.write_text(text, encoding="utf-8")
    runs = tmp_path / "runs"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    try:
        done = subprocess.run(
            ["bash", str(ROOT / "infra" / "slurm.sh"), str(space), str(runs)],
            cwd=ROOT,
            env={
                **environment,
                "PATH": f"{folder}:{environment['PATH']}",
                "PYTHON": sys.executable,
                "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
                "SLURM_JOB_ID": str(job),
                "SLURM_JOB_NODELIST": "node-a",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
    finally:
        shutil.rmtree(f"/tmp/sw{job}", ignore_errors=True)
    assert done.returncode == 0, done.stdout + done.stderr
    records = Store(runs / "slurm").records()
    assert [r.state for r in records] == [TrialState.COMPLETE] * 2
    assert list(runs.glob(".ray_token*")) == []
    left = subprocess.run(["pgrep", "-f", f"/tmp/sw{job}/"], check=False, capture_output=True)
    assert left.stdout == b""
