"""Signals to a driver, and what it gives up for them, in moments in which they might be lost."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.raylets import ENVIRONMENT, raylets
from tests.cluster.running import running_sweep

pytestmark = pytest.mark.slow

#: Joins a cluster, takes all GPUs of a node, and keeps them until its input ends.
HOLD = """
import ray, sys
ray.init(address=sys.argv[1], log_to_driver=False)
class Holder:
    def held(self): return True
holder = ray.remote(Holder).options(num_gpus=8, num_cpus=0).remote()
print(ray.get(holder.held.remote()), flush=True)
sys.stdin.read()
"""


def said_by(script: str, folder: Path) -> str:
    """Run a driver in a process of its own, and return the last line that it prints."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-m", f"tests.cluster.{script}", str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def test_a_trial_that_is_given_up_before_it_has_begun_is_not_run(tmp_path: Path) -> None:
    assert said_by("cancelled", tmp_path) == "measured 0"


def test_sigterm_is_the_drivers_own_after_ray_was_started_anew(tmp_path: Path) -> None:
    said = said_by("signals", tmp_path)
    assert said.split() == ["1", str(128 + signal.SIGTERM)]


def test_who_interrupts_while_others_have_the_gpus_need_not_wait(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    with raylets() as cluster:
        cluster.add(8)
        with subprocess.Popen(
            [sys.executable, "-c", HOLD, cluster.address],
            env=environment | ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            assert other.stdout is not None
            assert other.stdin is not None
            assert other.stdout.readline().strip() == "True"
            more = ("--address", cluster.address)
            with running_sweep(tmp_path, "waiting", *more, env=ENVIRONMENT) as sweep:
                sweep.until("waiting for slot-0 to start")
                sweep.process.send_signal(signal.SIGINT)
                # Without an answer to it, the start of an actor is given up after two minutes.
                assert sweep.process.wait(timeout=60) == 130
            other.stdin.close()
    said = "".join(sweep.lines)
    assert "interrupted while slots were starting" in said
    assert "Traceback" not in said
