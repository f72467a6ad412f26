"""A whole sweep inside the test's own process, on the inline executor, and what it must leave."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from sweeper.search import main
from sweeper.serving.supervisor import MARK, all_processes
from sweeper.store import Store

SPACE = """\
study: {study}
engine:
  kind: simulated
  model: /models/target
  gpus: 8
  flags:
    tp-size: 8
    cuda-graph-max-bs-decode: 4
    max-running-requests: 48
    speculative-algorithm: EAGLE3
    speculative-draft-model-path: /models/draft
    speculative-eagle-topk: 1
    {flags}
  env: {{SGLANG_PYSPY_DUMP_BEFORE_CRASH: "0", SWEEPER_SIM_CHILDREN: "{children}"}}
  simulation: {{time_scale: {scale}, start_s: {start_s}, noise: 0, fault: "{fault}"}}
baseline: {{drop: [{drop}], flags: {base}}}
parameters:
  steps: {{flag: speculative-num-steps, values: {steps}}}
  draft_tokens: {{flag: speculative-num-draft-tokens, values: [9], when: steps > 9, otherwise: steps + 1}}
workloads: [{{name: single, max_tokens: {tokens}, warmup: 0}}]
objectives: [{{maximize: output_tok_s}}]
budget: {{launches: {launches}}}
{more}
"""


def space_text(study: str, **changes: object) -> str:
    """Return a small space file; its baseline speculates too, unless `drop` says otherwise."""
    given = {
        "flags": "",
        "children": 0,
        "scale": 100,
        "start_s": 5,
        "fault": "",
        "drop": "",
        "base": "{speculative-num-steps: 2, speculative-num-draft-tokens: 3}",
        "steps": [2],
        "tokens": 60,
        "launches": 1,
        "more": "",
    }
    return SPACE.format(study=study, **{**given, **changes})


def sweep(folder: Path, text: str, *more: str) -> int:
    """Run the command in this process; signals are handled as before afterwards."""
    space = folder / "space.yaml"
    space.write_text(text, encoding="utf-8")
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        return main([str(space), "--executor", "inline", "--runs", str(folder / "runs"), *more])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def store_of(folder: Path, study: str) -> Store:
    """Return the store of a study run by `sweep`."""
    return Store(folder / "runs" / study)


def servers_of(study: str) -> list[int]:
    """Return the pids of all living processes of servers of a study, supervisors included."""
    wanted = f"{MARK}=sweeper/{study}/".encode()
    found = []
    for stat in all_processes():
        try:
            environ = Path(f"/proc/{stat.pid}/environ").read_bytes()
        except OSError:
            continue
        if stat.alive and stat.pid != os.getpid() and wanted in environ:
            found.append(stat.pid)
    return found


def wait_for(done: Callable[[], bool], what: str, limit_s: float = 60.0) -> float:
    """Wait until `done`; return how many seconds it took."""
    begun = time.monotonic()
    while not done():
        assert time.monotonic() - begun < limit_s, f"waited {limit_s} s for {what}"
        time.sleep(0.01)
    return time.monotonic() - begun
