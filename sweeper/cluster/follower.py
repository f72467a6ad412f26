"""The processes of a server over several nodes that answer nobody: ranks 1 and up.

    leader (a Slot, rank 0)  --begin--> each Follower: its own supervised process of the same setting
                             --ended--> did one end by itself? then the whole server is given up
                             --stop---> gone, its GPU memory back

The ranks meet at an address of the leader. Each owner watches its own node; the driver ends all
actors of a slot together.
"""

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sweeper.clock import Clock
from sweeper.cluster.assignment import Assignment, runnable
from sweeper.engines.base import Engine
from sweeper.errors import Failure, LaunchFailed
from sweeper.records import FlagValue
from sweeper.serving import Gpus, Place, ProcessId, Rank, start_rank


def rank_flags(*, nodes: int, rank: int, meeting: str) -> Mapping[str, FlagValue]:
    """Return the flags by which SGLang's processes on several nodes find each other.

    Args:
        nodes: How many there are.
        rank: Which one this is, from 0.
        meeting: HOST:PORT of rank 0.
    """
    return {"nnodes": nodes, "node-rank": rank, "dist-init-addr": meeting}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a follower's process runs.

    Attributes:
        slot: The slot's name.
        gpu_ids: Its GPUs.
        watch: Processes that end it.
    """

    slot: str
    gpu_ids: tuple[int, ...]
    watch: tuple[ProcessId, ...]


class RankHolder:
    """Holds one rank's process; used by one thread, but for `failure`."""

    def __init__(self, engine: Engine, gpus: Gpus, seat: Seat) -> None:
        self._engine = engine
        self._gpus = gpus
        self._seat = seat
        self._rank: Rank | None = None
        self._failure: Failure | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, assignment: Assignment, rank: int, flags: Mapping[str, FlagValue]) -> None:
        """Start the process of a rank; what goes wrong is told by `failure`."""
        self._stopping.clear()
        self._failure = None
        launch = runnable(replace(assignment, place_flags=tuple(flags.items())))
        folder = Path(assignment.folder)
        place = Place(
            gpu_ids=self._seat.gpu_ids,
            log_path=folder / f"{assignment.log.removesuffix('.log')}.rank{rank}.log",
            mark=f"{assignment.mark(self._seat.slot)}/{rank}",
            watch=self._seat.watch,
            cache_dir=folder / assignment.cache,
        )

        def hold() -> None:
            try:
                held = start_rank(
                    self._engine,
                    launch,
                    place=place,
                    gpus=self._gpus,
                    limits=assignment.limits,
                    clock=Clock(assignment.time_scale),
                )
            except LaunchFailed as error:
                self._failure = error.failure
                return
            with contextlib.closing(held):
                self._failure = held.until(self._stopping)

        self._thread = threading.Thread(target=hold, daemon=True)
        self._thread.start()

    def failure(self) -> Failure | None:
        """Return why the process ended by itself; None while it lives or after a wanted stop."""
        return self._failure

    def stop(self) -> None:
        """Stop the process and wait until it is gone."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
