"""A sweep in a container of one core and 64 MB of shared memory, beside another Ray."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sweeper.records import TrialState
from sweeper.store import Store
from tests.cluster.running import space_text

pytestmark = pytest.mark.slow
#: A mount of its own for shared memory, then one core, then the command.
SMALL = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec taskset -c 0 "$@"'


def test_one_core_and_64_mb_of_shared_memory_are_enough(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or shutil.which("taskset") is None:
        pytest.skip("unshare and taskset are not installed")
    inside = [unshare, "--mount", "sh", "-c", SMALL, "sh"]
    if subprocess.run([*inside, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may not make a mount of its own")
    space = tmp_path / "space.yaml"
    space.write_text(space_text("small", scale=1000, tokens=20, repeats=1, launches=2))
    temp = tempfile.mkdtemp(prefix="sw", dir="/tmp")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    try:
        done = subprocess.run(
            [*inside, sys.executable, "-m", "sweeper.search", str(space)],
            cwd=tmp_path,
            env={
                **environment,
                "RAY_TMPDIR": temp,
                "HOME": str(tmp_path),
                # What the shell shows is not what made-up servers are given.
                "CUDA_VISIBLE_DEVICES": "3",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    assert done.returncode == 0, done.stdout + done.stderr
    records = Store(tmp_path / "runs" / "small").records()
    assert [r.state for r in records] == [TrialState.COMPLETE] * 2
    assert {r.host.gpu_ids for r in records if r.host is not None} == {tuple(range(8))}
