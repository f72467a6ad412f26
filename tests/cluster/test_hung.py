"""A slot that no longer answers is given up, and its GPUs are used again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sweeping import servers_of

pytestmark = pytest.mark.slow


def test_a_slot_that_hangs_is_killed_with_its_server_and_runs_the_next_trial(
    tmp_path: Path,
) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster.hung", str(tmp_path)],
        # Ray's patience with a worker that does not end is five seconds.
        env={**environment, "RAY_kill_worker_timeout_milliseconds": "1000"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith(("lost", "next"))]
    assert said[0].startswith("lost the actor died")
    assert said[1] == "next complete"
    assert servers_of("hung") == []
