"""Who a process is, and finding those that lost their owner.

A pid alone names nothing: pids come round again. A process is its pid and its start time.

Leftovers of a server are known by two marks, because each can be lost: the mark in the
environment (a process that sets its own title, as SGLang's scheduler does, overwrites the memory
that /proc/PID/environ shows), and a stdout and stderr that lead into a server's log.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sweeper.serving.supervisor import (
    MARK,
    ProcessStat,
    all_processes,
    descendants,
    kill_process,
    read_stat,
)

#: How long a sweep waits for the killed to be gone, in real seconds.
_SWEEP_S = 10.0
#: How a supervisor's own word on its command line ends, wherever the package is installed.
_SUPERVISOR = b"/sweeper/serving/supervisor.py"


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process for good.

    Attributes:
        pid: Its pid.
        starttime: When it started, in clock ticks since boot (field 22 of /proc/PID/stat).
    """

    pid: int
    starttime: int

    @classmethod
    def of(cls, pid: int) -> "ProcessId":
        """Return the identity of the process that has this pid now.

        Raises:
            ProcessLookupError: There is none.
        """
        stat = read_stat(pid)
        if stat is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, stat.starttime)

    def alive(self) -> bool:
        """Tell whether it still runs; a zombie does not."""
        stat = read_stat(self.pid)
        return stat is not None and stat.alive and stat.starttime == self.starttime


def sweep_marked(mark_prefix: str, *, logs: Path | None = None) -> int:
    """Kill what is left of servers whose supervisor is gone.

    A server whose supervisor lives has an owner, or is being ended for the want of one; so this
    may be called while other slots of the same run are at work on this machine.

    Args:
        mark_prefix: How the marks begin that belong to the caller, not empty. End it with a
            separator: "study-1" begins "study-10" too.
        logs: Log of such a server, or a folder that holds nothing but such logs; finds those
            that have overwritten their environment.

    Returns:
        The number of processes killed; they are dead when this returns.

    Raises:
        ValueError: The prefix is empty, which would match the servers of everyone.
    """
    if not mark_prefix:
        raise ValueError("an empty prefix would match every server on the machine")
    log = str(logs.resolve()) if logs is not None else None
    return sweep(
        lambda mark: mark.startswith(mark_prefix),
        lambda path: log is not None and (path == log or path.startswith(f"{log}/")),
        _supervised,
    )


def sweep(
    is_mark: Callable[[str], bool],
    is_log: Callable[[str], bool],
    spare: Callable[[], set[int]] = set,
) -> int:
    """Kill all processes with such a mark, or whose stdout and stderr are such a log.

    The caller, its ancestors and the pids that `spare` returns are left alone. See `sweep_marked`
    for what is returned.
    """
    ancestors = _ancestors()
    killed: set[ProcessId] = set()
    end = time.monotonic() + _SWEEP_S
    while time.monotonic() < end:
        seen = [s for s in all_processes() if s.alive and _is_ours(s, is_mark, is_log)]
        # Asked after the look, so that who has got an owner meanwhile is among them.
        spared = ancestors | spare()
        found = [ProcessId(s.pid, s.starttime) for s in seen if s.pid not in spared]
        killed.update(one for one in found if kill_process(one.pid, one.starttime))
        if not any(one.alive() for one in found):
            break
        time.sleep(0.01)
    return len(killed)


def name_of(pid: int) -> str | None:
    """Return the short name of a process; None if it cannot be seen."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None


def _supervised() -> set[int]:
    """Return the pids of all living supervisors and of what they own."""
    found: set[int] = set()
    for stat in all_processes():
        try:
            words = Path(f"/proc/{stat.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if stat.alive and any(word.endswith(_SUPERVISOR) for word in words):
            found |= {stat.pid, *(below.pid for below in descendants(stat.pid))}
    return found


def _ancestors() -> set[int]:
    found: set[int] = set()
    pid = os.getpid()
    while pid > 0 and (stat := read_stat(pid)) is not None:
        found.add(pid)
        pid = stat.parent
    return found


def _is_ours(
    stat: ProcessStat, is_mark: Callable[[str], bool], is_log: Callable[[str], bool]
) -> bool:
    folder = Path(f"/proc/{stat.pid}")
    try:
        if folder.stat().st_uid != os.geteuid():
            return False
        for entry in (folder / "environ").read_bytes().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name == MARK.encode() and is_mark(os.fsdecode(value)):
                return True
        streams = {str((folder / "fd" / number).readlink()) for number in ("1", "2")}
    except OSError:
        return False
    return len(streams) == 1 and is_log(streams.pop().removesuffix(" (deleted)"))
