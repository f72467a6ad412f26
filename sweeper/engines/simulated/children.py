"""The process tree in small: scheduler and detokenizer children, and one that will not die.

Forked before the event loop exists, so that they cost no second interpreter. Like SGLang's they
share the parent's process group, and only some time after their start, when their imports are
done, do they ask the kernel to die with the parent: a parent that is killed before leaves the
detokenizer behind for ever. Here "for ever" has an end.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
#: Real seconds after which any child ends, whatever happened to its parent.
_LONGEST_LIFE_S = 900.0


def spawn_children(schedulers: int, import_s: float) -> dict[int, str]:
    """Start the children and return their names by process id.

    Args:
        schedulers: How many scheduler processes; with none there is no detokenizer either.
        import_s: Real seconds of their imports.
    """
    if schedulers < 1:
        return {}
    children = {}
    for rank in range(schedulers):
        children[
            _fork(lambda: _live(import_s, survives_orphaned=False), f"sglang::scheduler_TP{rank}")
        ] = f"scheduler_{rank}"
    detokenizer = _fork(lambda: _live(import_s, survives_orphaned=True), "sglang::detokenizer")
    children[detokenizer] = "detokenizer"
    return children


def spawn_stray() -> None:
    """Start a process in a session of its own that ignores SIGTERM, and disown it."""
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    _name("sglang::stray")
    _ignore()
    time.sleep(_LONGEST_LIFE_S)
    os._exit(0)


def kill_children(children: dict[int, str]) -> None:
    """Kill all children that live."""
    for pid in children:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _fork(live: Callable[[], NoReturn], name: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        _name(name)
        live()
    finally:
        os._exit(1)


def _live(import_s: float, *, survives_orphaned: bool) -> NoReturn:
    # A signal to the group reaches the children too; SGLang's leave the reaction to the parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    start = time.monotonic()
    time.sleep(import_s)
    if os.getppid() == parent:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent and not survives_orphaned:
        os._exit(1)
    time.sleep(max(_LONGEST_LIFE_S - (time.monotonic() - start), 0.0))
    os._exit(0)


def _ignore() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _name(name: str) -> None:
    """Set the process's name, of which the kernel keeps fifteen characters."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15])
