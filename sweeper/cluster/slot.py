"""The Ray actor that owns the GPUs of one server and runs one trial at a time.

The actor's worker process is the owner of the server: the supervisor ends the server when this
process, the raylet or the driver dies. Ray never restarts the actor and never retries its methods:
a server must not be started twice by anybody but the driver's own decision.
"""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from sweeper.cluster.assignment import Assignment, Cancelled, Status, host_name
from sweeper.cluster.follower import RankHolder, Seat, rank_flags
from sweeper.cluster.joining import line_of
from sweeper.cluster.trial import run_trial, state_of
from sweeper.engines.base import Engine
from sweeper.errors import Failure, FailureClass, Stage
from sweeper.records import FlagValue, HostFacts, TrialRecord
from sweeper.serving import Gpus, Ports, ProcessId, detect, index_of, reserve_ports, sweep_marked

#: Real seconds that a follower may take to prove its process gone, its GPU memory included.
_DISMISS_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """Servers of a dead owner that a new one ends first.

    Attributes:
        mark: How their marks begin.
        logs: One's log, or a folder of nothing but their logs; None if not known.
    """

    mark: str
    logs: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """What an actor is told when it starts.

    Attributes:
        slot: The slot's name.
        engine: The adapter.
        leftovers: What is ended first.
        driver: The driver and its host, watched where it is this host.
        gpu_name: Name of GPUs that are made up; None for real ones.
        sharing: Slots that share the host.
    """

    slot: str
    engine: Engine
    leftovers: Leftovers
    driver: tuple[str, ProcessId]
    gpu_name: str | None = None
    sharing: int = 1


class _Seated:
    """What a leader and a follower have in common: a node, GPUs, and whom they die with."""

    def __init__(self, owner: Owner) -> None:
        self.gpus: Gpus = detect()
        self.gpu_ids = tuple(index_of(self.gpus, str(i)) for i in ray.get_gpu_ids())
        self.raylet = raylet = ProcessId.of(os.getppid())
        host, driver = owner.driver
        # Containers of one host may share its name, and do not see each other's processes.
        is_here = host == host_name() and driver.alive()
        self.watch = (raylet, driver) if is_here else (raylet,)
        threading.Thread(target=_die_with, args=(raylet.pid,), daemon=True).start()
        # Ray's own reaction to SIGTERM waits for the trial that runs.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
        logs = owner.leftovers.logs
        sweep_marked(owner.leftovers.mark, logs=Path(logs) if logs is not None else None)

    def gpu_name(self) -> str | None:
        """Return the name of its GPUs."""
        names = {device.index: device.name for device in self.gpus.devices()}
        return names.get(self.gpu_ids[0]) if self.gpu_ids else None


class Follower:
    """The actor that owns the GPUs of a rank above 0."""

    def __init__(self, owner: Owner) -> None:
        self._seated = seated = _Seated(owner)
        seat = Seat(slot=owner.slot, gpu_ids=seated.gpu_ids, watch=seated.watch)
        self._holder = RankHolder(owner.engine, seated.gpus, seat)

    def host(self) -> str:
        """Return the node's name; answers once the actor is alive."""
        return host_name()

    def begin(self, assignment: Assignment, rank: int, flags: dict[str, FlagValue]) -> None:
        """Start the rank's process."""
        self._holder.begin(assignment, rank, flags)

    def failure(self) -> Failure | None:
        """Return why its process ended by itself, or None."""
        return self._holder.failure()

    def stop(self) -> None:
        """Stop its process and wait until it is gone."""
        self._holder.stop()


class Slot:
    """One set of GPUs; methods run in threads, `run` in one of them.

    Args:
        owner: What it is told.
        followers: The actors of the other nodes, by rank from 1.
    """

    def __init__(self, owner: Owner, followers: Sequence[Any] = ()) -> None:
        self._engine = owner.engine
        self._followers = followers
        self._status = Status()
        self._cancelled: int | None = None
        self._number: int | None = None
        self._looks: list[Any] = []
        self._broken: Failure | None = None
        self._seated = seated = _Seated(owner)
        self._host = HostFacts(
            host=host_name(),
            slot=owner.slot,
            gpu_name=owner.gpu_name or seated.gpu_name(),
            gpu_ids=seated.gpu_ids,
            driver_version=seated.gpus.driver_version(),
            ray_node_id=ray.get_runtime_context().get_node_id(),
            sharing=owner.sharing,
            other_hosts=tuple(ray.get([f.host.remote() for f in followers])),
        )

    def facts(self) -> tuple[HostFacts, ProcessId]:
        """Return where this slot is, and its raylet; answers once all of it is alive."""
        return self._host, self._seated.raylet

    def run(self, assignment: Assignment) -> TrialRecord | None:
        """Run one trial; None if it was cancelled."""
        self._begin(assignment.trial.number)
        started_at, begun_s = datetime.now(UTC).isoformat(), time.monotonic()
        record: TrialRecord | None = None
        try:
            with contextlib.ExitStack() as stack:
                if self._followers:
                    assignment = self._gather(assignment, stack)
                record = run_trial(
                    assignment,
                    self._engine,
                    self._host,
                    self._seated.gpus,
                    watch=self._seated.watch,
                    on_status=self._set_status,
                    cancelled=self._given_up,
                )
        except RayError as error:
            if record is None:
                raise
            # It was measured; only the end of another rank was not seen.
            left = f"after the server's end: {line_of(error)}"
            return replace(record, reason=record.reason or left)
        except Cancelled:
            if self._broken is None:
                return None
            return TrialRecord(
                trial=assignment.trial,
                state=state_of(self._broken),
                failure=self._broken,
                host=self._host,
                started_at=started_at,
                phases_s={"lost": (time.monotonic() - begun_s) * assignment.time_scale},
                log=assignment.log,
            )
        finally:
            self._status = Status()
        return record

    def _begin(self, number: int) -> None:
        self._number = number
        self._looks, self._broken = [], None

    def _gather(self, assignment: Assignment, stack: contextlib.ExitStack) -> Assignment:
        """Start the other ranks; all are stopped when `stack` is closed."""
        block: Ports = reserve_ports()
        stack.callback(block.release)
        meeting = f"{_node_address()}:{block.port}"
        nodes = len(self._followers) + 1
        stack.callback(self._dismiss)
        ray.get(
            [
                follower.begin.remote(
                    assignment, rank, dict(rank_flags(nodes=nodes, rank=rank, meeting=meeting))
                )
                for rank, follower in enumerate(self._followers, 1)
            ]
        )
        flags = rank_flags(nodes=nodes, rank=0, meeting=meeting)
        return replace(assignment, place_flags=tuple(flags.items()))

    def _dismiss(self) -> None:
        ray.get([f.stop.remote() for f in self._followers], timeout=_DISMISS_S)

    def _given_up(self) -> bool:
        """Tell whether to stop: the driver wants it, or another rank's process has ended."""
        if self._number == self._cancelled:
            return True
        if self._broken is None and self._followers:
            self._look_at_followers()
        return self._broken is not None

    def _look_at_followers(self) -> None:
        """Ask all, and read what they answered; never waits."""
        if not self._looks:
            self._looks = [f.failure.remote() for f in self._followers]
        done, _ = ray.wait(self._looks, num_returns=len(self._looks), timeout=0)
        if len(done) < len(self._looks):
            return
        looks, self._looks = self._looks, []
        for rank, look in enumerate(looks, 1):
            try:
                failure = ray.get(look)
            except RayError as error:
                failure = Failure(
                    kind=FailureClass.NODE_LOST,
                    stage=Stage.SERVING,
                    line=f"{error}".splitlines()[0],
                )
            if failure is not None:
                self._broken = replace(failure, line=f"rank {rank}: {failure.line}")
                return

    def _set_status(self, status: Status) -> None:
        self._status = status

    def status(self) -> Status:
        """Return what is going on."""
        return self._status

    def cancel(self, number: int) -> None:
        """Ask a trial to stop its server and give up; the wish may be here before the trial."""
        self._cancelled = number


def _node_address() -> str:
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def _die_with(pid: int) -> None:
    """End this process when the raylet dies: Ray leaves a worker that is busy alive."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        os._exit(1)
    select.select([handle], [], [])
    os._exit(1)
