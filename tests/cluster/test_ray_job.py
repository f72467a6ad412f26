"""A sweep that is submitted as a Ray job joins the cluster that runs it."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from sweeper.records import TrialState
from sweeper.store import Store
from tests.cluster.raylets import ENVIRONMENT, Raylets, raylets
from tests.cluster.running import PATIENCE_S, space_text

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent.parent


def submit(cluster: Raylets, folder: Path, name: str, words: Sequence[str]) -> tuple[int, str]:
    """Submit from a copy of the checkout, as the documentation says, and wait for the end.

    Returns:
        The exit status, and all that the job printed.
    """
    address = ("--address", f"http://{cluster.dashboard}")
    job = ("--submission-id", name, "--working-dir", str(folder))
    program = (sys.executable, "-m", "sweeper.search", *words)
    end = time.monotonic() + PATIENCE_S
    while True:
        done = ray_job("submit", *address, *job, "--", *program)
        # A node's agent, which takes jobs, starts some time after its raylet.
        if "No available agent" not in done.stderr or time.monotonic() > end:
            break
        time.sleep(1.0)
    # What the command itself shows may lack the job's last lines.
    logs = ray_job("logs", *address, name)
    return done.returncode, done.stdout + done.stderr + logs.stdout


def ray_job(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `ray job` with these words."""
    ray = Path(sys.executable).parent / "ray"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return subprocess.run(
        [str(ray), "job", *words],
        env={**environment, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def checkout_of(folder: Path, study: str) -> Path:
    """Return a checkout with a space file of its own.

    Ray unpacks equal packages into one folder, and a job may begin in it before that is done.
    """
    checkout = folder / study
    for name in ("sweeper", "search_spaces"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    text = space_text(study, scale=1000, tokens=20, repeats=1, launches=2)
    (checkout / "job.yaml").write_text(text, encoding="utf-8")
    return checkout


def test_a_job_joins_its_cluster_and_keeps_its_results_where_they_stay(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    done: dict[str, tuple[int, str]] = {}
    with raylets(dashboard=True) as cluster:
        cluster.add(8)
        refused = threading.Thread(
            target=lambda: done.update(
                refused=submit(cluster, checkout_of(tmp_path, "refused"), "refused", ["job.yaml"])
            )
        )
        refused.start()
        words = ["job.yaml", "--runs", str(runs)]
        done["kept"] = submit(cluster, checkout_of(tmp_path, "kept"), "kept", words)
        refused.join()
    status, said = done["kept"]
    assert status == 0, said
    records = Store(runs / "kept").records()
    assert [r.state for r in records] == [TrialState.COMPLETE] * 2
    assert all(r.host is not None and r.host.ray_node_id for r in records)
    status, said = done["refused"]
    assert status != 0
    assert "give --runs a folder that all nodes share and that stays" in said
