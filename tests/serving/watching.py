"""What the tests of this folder look at, and how long they wait."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeper.errors import Failure, LaunchFailed, ServerDied
from sweeper.records import Limits
from sweeper.serving import Server
from sweeper.serving.supervisor import MARK, all_processes

#: Long enough that a busy machine passes none of them by accident.
PATIENT = Limits(
    start_s=120, silence_s=120, stop_s=60, memory_free_s=60, progress_s=60, probe_s=60
)
Start = Callable[..., Server]


def marked(mark: str) -> list[int]:
    """Pids of living processes that carry the mark."""
    found = []
    for stat in all_processes():
        try:
            entries = Path(f"/proc/{stat.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if stat.alive and f"{MARK}={mark}".encode() in entries:
            found.append(stat.pid)
    return found


def wait_for(done: Callable[[], bool], limit_s: float = 60.0) -> bool:
    end = time.monotonic() + limit_s
    while not done() and time.monotonic() < end:
        time.sleep(0.01)
    return done()


def failure_of(begin: Callable[[], object]) -> Failure:
    with pytest.raises(LaunchFailed) as caught:
        begin()
    return caught.value.failure


def is_dead(server: Server) -> bool:
    try:
        server.check()
    except ServerDied:
        return True
    return False
