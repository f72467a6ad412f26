"""A real sweep on Ray in a process of its own, and what belongs to it on this machine."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.serving.supervisor import all_processes
from tests.sweeping import servers_of

SPACE = """\
study: {study}
engine:
  kind: simulated
  model: /models/target
  gpus: {gpus}
  nodes: {nodes}
  slots_per_node: {slots_per_node}
  measure_alone: false
  flags:
    tp-size: {tp}
    cuda-graph-max-bs-decode: 4
    max-running-requests: 48
    speculative-algorithm: EAGLE3
    speculative-draft-model-path: /models/draft
  simulation: {{time_scale: {scale}, start_s: 5, noise: 0.2}}
parameters:
  steps: {{flag: speculative-num-steps, values: [1, 2, 3, 4, 5, 6, 7, 8]}}
  topk: {{flag: speculative-eagle-topk, values: [1, 2, 4, 8]}}
  draft_tokens: {{flag: speculative-num-draft-tokens, values: [3, 4, 5, 6, 7, 8, 10, 12, 16], when: topk > 1, otherwise: steps + 1}}
constraints: [steps < draft_tokens <= 1 + topk + (steps - 1) * topk ** 2]
workloads: [{{name: single, max_tokens: {tokens}, repeats: {repeats}, warmup: 0}}]
objectives: [{{maximize: output_tok_s}}]
sampler: random
budget: {{launches: {launches}, hours: 100000}}
"""
PATIENCE_S = 120.0


@dataclass
class RunningSweep:
    """A driver at work.

    Attributes:
        process: The driver.
        study: The study's name.
        folder: Where it was started; results are below.
        temp: Ray's folder for sessions.
        home: The driver's home folder.
        lines: What it has printed so far.
    """

    process: subprocess.Popen[str]
    study: str
    folder: Path
    temp: Path
    home: Path
    lines: list[str] = field(default_factory=list)

    def until(self, pattern: str, limit_s: float = PATIENCE_S) -> re.Match[str]:
        """Wait until a line that it prints matches."""
        end = time.monotonic() + limit_s
        while True:
            ended = self.process.poll() is not None
            for line in list(self.lines):
                if found := re.search(pattern, line):
                    return found
            assert not ended, "".join(self.lines)
            assert time.monotonic() < end, "".join(self.lines)
            time.sleep(0.1)

    def read(self) -> None:
        """Take all that it prints; the body of a thread."""
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    @property
    def session(self) -> Path:
        """The folder of its Ray session."""
        return (self.temp / "ray" / "session_latest").resolve()

    def pids(self) -> set[int]:
        """Return the driver, all that descends from it, and all of its servers."""
        children: dict[int, list[int]] = {}
        for stat in all_processes():
            children.setdefault(stat.parent, []).append(stat.pid)
        found, waiting = set(servers_of(self.study)), [self.process.pid]
        while waiting:
            pid = waiting.pop()
            found.add(pid)
            waiting += children.get(pid, [])
        return found


def space_text(study: str, **changes: int) -> str:
    """Return a space of a few hundred settings, each tried in a random order."""
    given = {"scale": 5, "tokens": 200, "repeats": 3, "launches": 60, **changes}
    given = {"gpus": 8, "nodes": 1, "slots_per_node": 1, "tp": given.get("gpus", 8), **given}
    return SPACE.format(study=study, **given)


@contextlib.contextmanager
def running_sweep(
    folder: Path, study: str, *more: str, env: dict[str, str] | None = None, **changes: int
) -> Iterator[RunningSweep]:
    """Start a sweep on a Ray of its own, with a home and a session folder of its own."""
    space = folder / "space.yaml"
    space.write_text(space_text(study, **changes), encoding="utf-8")
    home = folder / "home"
    home.mkdir(exist_ok=True)
    # Ray puts sockets below it, whose paths may have 107 bytes.
    temp = Path(tempfile.mkdtemp(prefix="sw", dir="/tmp"))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment |= {
        "HOME": str(home),
        "RAY_TMPDIR": str(temp),
        "RAY_metrics_report_interval_ms": "1000",
        **(env or {}),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "sweeper.search", str(space), *more],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    running = RunningSweep(process, study, folder, temp, home)
    reader = threading.Thread(target=running.read, daemon=True)
    reader.start()
    try:
        yield running
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        shutil.rmtree(temp, ignore_errors=True)
