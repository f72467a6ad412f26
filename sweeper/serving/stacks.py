"""What a server that stands still is doing, looked at from outside before it is ended.

A kernel that is compiled at its first use stops all ranks for minutes, without a line of the log
and with idle GPUs (FlashInfer's sampling kernels take one): then a compiler is among its processes.
For the rest there are stacks. py-spy, which SGLang requires, reads a Python process's stacks from outside; the process need not
answer. It must be allowed to: as root, or where ptrace of one's own processes is.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sweeper.redaction import redact_text
from sweeper.serving.supervisor import descendants

#: Names of processes that build kernels: nvcc and its parts, and what starts them.
_COMPILERS = frozenset({"nvcc", "cicc", "ptxas", "ninja", "cc1plus", "hipcc", "clang"})
#: Real seconds for one process, and for all: the GPUs wait meanwhile.
_ONE_S, _ALL_S = 10.0, 30.0


def compilers(root: int) -> tuple[str, ...]:
    """Return the names of the compilers that run below process `root`, each once."""
    names = (_name(stat.pid) for stat in descendants(root))
    return tuple(dict.fromkeys(name for name in names if name in _COMPILERS))


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def program(interpreter: str) -> str | None:
    """Return py-spy's path: the one beside the server's interpreter, ours, or the PATH's."""
    beside = (Path(python).parent for python in (interpreter, sys.executable))
    for folder in beside:
        if found := shutil.which("py-spy", path=str(folder)):
            return found
    return shutil.which("py-spy")


def note_stacks(into: Path, *, root: int, command: Sequence[str]) -> None:
    """Write the stacks of all processes below `root` into a file, secrets hidden.

    What cannot be read is said there. Nothing is raised: the server's end must not wait for it.

    Args:
        into: The file; what was there is replaced.
        root: Pid of the server's supervisor.
        command: The server's command line.
    """
    found = program(command[0])
    if found is None:
        text = "py-spy is not installed beside the server, so no stacks can be shown\n"
    else:
        end = time.monotonic() + _ALL_S
        text = "".join(
            _stacks(found, stat.pid, end - time.monotonic()) for stat in descendants(root)
        )
    try:
        into.write_text(redact_text(text), encoding="utf-8")
    except OSError:
        return


def _stacks(found: str, pid: int, left_s: float) -> str:
    if left_s <= 0:
        return f"process {pid}: no time was left\n\n"
    try:
        done = subprocess.run(
            [found, "dump", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=min(_ONE_S, left_s),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"process {pid}: {error}\n\n"
    return f"{done.stdout or f'process {pid}: {done.stderr.strip()}'}\n"
