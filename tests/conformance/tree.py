"""A server's processes, found by parent: SGLang's titles overwrite the marks in their environment."""

import os
import time
from pathlib import Path


def children(pid: int) -> dict[int, str]:
    """Return the living descendants of a process with their names."""
    parents: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                head, _, tail = (folder / "stat").read_text().rpartition(") ")
            except OSError:
                continue
            if tail[0] not in "ZX":
                parents[int(folder.name)] = (int(tail.split()[1]), head.partition("(")[2])
    found: dict[int, str] = {}
    for child, (parent, name) in sorted(parents.items()):
        if parent == pid or parent in found:
            found[child] = name
    return found


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has taken; 0 of one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def living(pids: set[int]) -> set[int]:
    found = set()
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX":
                found.add(pid)
        except OSError:
            continue
    return found


def wait_gone(pids: set[int], limit_s: float = 60.0) -> bool:
    end = time.monotonic() + limit_s
    while living(pids) and time.monotonic() < end:
        time.sleep(0.05)
    return not living(pids)
