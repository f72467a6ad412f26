"""The Ray actor that owns the GPUs of one server and runs one trial at a time.

The actor's worker process is the owner of the server: the supervisor ends the server when this
process, the raylet or the driver dies. Ray never restarts the actor and never retries its methods:
a server must not be started twice by anybody but the driver's own decision.
"""

import os
import select
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

import ray

from sweeper.cluster.trial import Assignment, Cancelled, Status, host_name, run_trial
from sweeper.engines.base import Engine
from sweeper.records import HostFacts, TrialRecord
from sweeper.serving import ProcessId, detect, sweep_marked


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """Servers of a dead owner that a new one ends first.

    Attributes:
        mark: How their marks begin.
        logs: One's log, or a folder of nothing but their logs; None if not known.
    """

    mark: str
    logs: str | None = None


class Slot:
    """One set of GPUs; methods run in threads, `run` in one of them.

    Args:
        name: The slot's name.
        engine: The adapter.
        leftovers: What is ended first.
        simulated: Whether the GPUs are made up.
        driver: The driver and its host, watched where it is this host.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        leftovers: Leftovers,
        simulated: bool,
        driver: tuple[str, ProcessId],
    ) -> None:
        self._name = name
        self._engine = engine
        self._status = Status()
        self._cancelled = threading.Event()
        self._gpus = detect()
        gpu_ids = tuple(int(i) for i in ray.get_gpu_ids())
        self._raylet = raylet = ProcessId.of(os.getppid())
        self._watch = (raylet, driver[1]) if driver[0] == host_name() else (raylet,)
        threading.Thread(target=_die_with, args=(raylet.pid,), daemon=True).start()
        # Ray's own reaction to SIGTERM waits for the trial that runs.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
        logs = Path(leftovers.logs) if leftovers.logs is not None else None
        sweep_marked(leftovers.mark, logs=logs)
        names = {device.index: device.name for device in self._gpus.devices()}
        self._host = HostFacts(
            host=host_name(),
            slot=name,
            gpu_name="simulated" if simulated else (names.get(gpu_ids[0]) if gpu_ids else None),
            gpu_ids=gpu_ids,
            driver_version=self._gpus.driver_version(),
            ray_node_id=ray.get_runtime_context().get_node_id(),
        )

    def facts(self) -> tuple[HostFacts, ProcessId]:
        """Return where this slot is, and its raylet; answers once it is alive."""
        return self._host, self._raylet

    def run(self, assignment: Assignment) -> TrialRecord | None:
        """Run one trial; None if it was cancelled."""
        self._cancelled.clear()
        try:
            return run_trial(
                assignment,
                self._engine,
                self._host,
                self._gpus,
                watch=self._watch,
                on_status=self._set_status,
                cancelled=self._cancelled.is_set,
            )
        except Cancelled:
            return None
        finally:
            self._status = Status()

    def _set_status(self, status: Status) -> None:
        self._status = status

    def status(self) -> Status:
        """Return what is going on."""
        return self._status

    def cancel(self) -> None:
        """Ask the running trial to stop its server and give up."""
        self._cancelled.set()


def _die_with(pid: int) -> None:
    """End this process when the raylet dies: Ray leaves a worker that is busy alive."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        os._exit(1)
    select.select([handle], [], [])
    os._exit(1)
