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


def submit(
    cluster: Raylets, folder: Path, words: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """Submit from a copy of the checkout, as the documentation says, and wait for the end."""
    ray = Path(sys.executable).parent / "ray"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    command = [
        str(ray),
        *("job", "submit", "--address", f"http://{cluster.dashboard}"),
        *("--working-dir", str(folder)),
        *("--", sys.executable, "-m", "sweeper.search", *words),
    ]
    end = time.monotonic() + PATIENCE_S
    while True:
        done = subprocess.run(
            command,
            env={**environment, **ENVIRONMENT},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        # A node's agent, which takes jobs, starts some time after its raylet.
        if "No available agent" not in done.stderr or time.monotonic() > end:
            return done
        time.sleep(1.0)


def test_a_job_joins_its_cluster_and_keeps_its_results_where_they_stay(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for name in ("sweeper", "search_spaces"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    text = space_text("job", scale=1000, tokens=20, repeats=1, launches=2)
    (checkout / "job.yaml").write_text(text, encoding="utf-8")
    runs = tmp_path / "runs"
    done: dict[str, subprocess.CompletedProcess[str]] = {}
    with raylets(dashboard=True) as cluster:
        cluster.add(8)
        refused = threading.Thread(
            target=lambda: done.update(refused=submit(cluster, checkout, ["job.yaml"]))
        )
        refused.start()
        done["kept"] = submit(cluster, checkout, ["job.yaml", "--runs", str(runs)])
        refused.join()
    kept = done["kept"].stdout + done["kept"].stderr
    assert done["kept"].returncode == 0, kept
    records = Store(runs / "job").records()
    assert [r.state for r in records] == [TrialState.COMPLETE] * 2
    assert all(r.host is not None and r.host.ray_node_id for r in records)
    said = done["refused"].stdout + done["refused"].stderr
    assert done["refused"].returncode != 0
    assert "give --runs a folder that all nodes share and that stays" in said
