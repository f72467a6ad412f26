"""Kill the driver of a running sweep without warning, and take the time until its server is gone.

    python -m scripts.kill_owner SPACE --when loading|serving

starts `python -m sweeper.search SPACE`, waits until its server loads weights or answers requests,
sends SIGKILL to the driver alone, and prints one line of JSON: seconds until no process of the
server is left, and until its GPUs hold what they held before. A server that is left counts as an
error, exit status 1.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweeper.config import find_space, load_study
from sweeper.serving import Gpus, detect
from sweeper.store import newest_run

#: Lines of the server's log that show how far it is (SGLang 0.5.15 to 0.5.23).
SIGNS = {"loading": b"Load weight begin", "serving": b"Decode batch"}
#: GPU memory may differ by this without anyone holding on, in MiB.
_SLACK_MIB = 512
_POLL_S = 0.02


def kill_owner(
    space: str,
    when: str,
    *,
    runs: Path,
    wait_s: float,
    gone_s: float,
    gpu_ids: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Do it once.

    Args:
        space: The space file.
        when: "loading" or "serving".
        runs: Folder of all results.
        wait_s: How long to wait for that moment.
        gone_s: How long to wait for the end of the server.
        gpu_ids: The GPUs that are looked at; None for all.

    Raises:
        TimeoutError: The moment did not come.
    """
    study = load_study(find_space(space))
    gpus = detect()
    ids = [device.index for device in gpus.devices()] if gpu_ids is None else list(gpu_ids)
    before = gpus.memory_used_mib(ids)
    folder = newest_run(runs, study.name)
    # A trial that was killed has no row, so the next one takes its number and goes on in its log.
    begun = {path: path.stat().st_size for path in _logs(folder)}
    driver = subprocess.Popen(
        [sys.executable, "-m", "sweeper.search", space, "--runs", str(runs)],
        start_new_session=True,
    )
    end = time.monotonic() + wait_s
    while not any(SIGNS[when] in _since(path, begun.get(path, 0)) for path in _logs(folder)):
        if time.monotonic() > end or driver.poll() is not None:
            driver.terminate()
            driver.wait()
            raise TimeoutError(f"no server was {when} within {wait_s:g} s")
        time.sleep(_POLL_S)
    there, held = len(_family(study.name)), gpus.memory_used_mib(ids)
    driver.send_signal(signal.SIGKILL)
    killed_s = time.monotonic()
    found: dict[str, Any] = {
        "when": when,
        "processes": there,
        "held_mib": sum(held.values()) - sum(before.values()),
        "processes_gone_s": None,
        "memory_free_s": None,
    }
    while (after_s := time.monotonic() - killed_s) < gone_s:
        if found["processes_gone_s"] is None and not _family(study.name):
            found["processes_gone_s"] = round(after_s, 2)
        if found["memory_free_s"] is None and _is_back(gpus, ids, before):
            found["memory_free_s"] = round(after_s, 2)
        if None not in (found["processes_gone_s"], found["memory_free_s"]):
            break
        time.sleep(_POLL_S)
    driver.wait()
    return found


def _is_back(gpus: Gpus, ids: Sequence[int], before: dict[int, int]) -> bool:
    used = gpus.memory_used_mib(ids)
    return all(used[index] <= before[index] + _SLACK_MIB for index in ids)


def _logs(folder: Path) -> list[Path]:
    return list((folder / "logs").glob("*.log"))


def _since(path: Path, start: int) -> bytes:
    with path.open("rb") as log:
        log.seek(start)
        return log.read()


def _family(study: str) -> list[int]:
    """Return the pids of living processes that carry a mark of the study, or are their children."""
    marked, parents = set(), {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            marks = f"SWEEPER_MARK=sweeper/{study}/".encode() in (folder / "environ").read_bytes()
        except OSError:
            continue
        pid = int(folder.name)
        if stat[0] in "ZX" or pid == os.getpid():
            continue
        parents[pid] = int(stat[1])
        if marks:
            marked.add(pid)
    # A process that sets its own title overwrites its environment; its parent still shows it.
    return sorted(pid for pid, parent in parents.items() if pid in marked or parent in marked)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.kill_owner")
    parser.add_argument("space")
    parser.add_argument("--when", choices=sorted(SIGNS), required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--wait", type=float, default=120.0, help="seconds until that moment")
    parser.add_argument("--gone", type=float, default=20.0, help="seconds until the end")
    parser.add_argument("--gpus", type=int, nargs="+", help="numbers of the GPUs to look at")
    options = parser.parse_args(argv)
    found = kill_owner(
        options.space,
        options.when,
        runs=options.runs,
        wait_s=options.wait,
        gone_s=options.gone,
        gpu_ids=options.gpus,
    )
    sys.stdout.write(json.dumps(found) + "\n")
    return 0 if found["processes_gone_s"] is not None else 1


if __name__ == "__main__":
    sys.exit(main())
