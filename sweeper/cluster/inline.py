"""An executor in this process, one slot, no Ray: for the debugger and for tests."""

import os
import queue
import threading
from pathlib import Path

from sweeper.cluster.assignment import Assignment, Cancelled, Status, host_name, run_mark
from sweeper.cluster.base import Outcome
from sweeper.cluster.metrics import SweepNumbers
from sweeper.cluster.service import Service
from sweeper.cluster.trial import run_trial
from sweeper.engines.base import Engine
from sweeper.errors import SlotLost
from sweeper.records import HostFacts, TrialRecord
from sweeper.serving import Gpus, ProcessId, sweep_marked

SLOT = "local-0"


class InlineExecutor:
    """Runs trials one after the other in a thread of this process."""

    def __init__(self, engine: Engine, gpus: Gpus, *, gpu_ids: tuple[int, ...] = ()) -> None:
        self._engine = engine
        self._gpus = gpus
        devices = {device.index: device.name for device in gpus.devices()}
        self._host = HostFacts(
            host=host_name(),
            slot=SLOT,
            gpu_name=devices.get(gpu_ids[0]) if gpu_ids else None,
            gpu_ids=gpu_ids,
            driver_version=gpus.driver_version(),
        )
        self._done: queue.Queue[Outcome] = queue.Queue()
        self._cancelled = threading.Event()
        self._status = Status()
        self._thread: threading.Thread | None = None
        self._swept = False
        self._service = Service()
        self._service.add([SLOT])

    dashboard_url: str | None = None

    def hardware_of(self, slot: str) -> str | None:  # noqa: ARG002
        """Return the name of the GPUs."""
        return self._host.gpu_name

    def free_slots(self) -> list[str]:
        """Return the one slot if it is idle."""
        return [] if self._thread is not None or self._service.lost else [SLOT]

    def starting_slots(self) -> list[str]:
        """Return none: the slot is there or out of service."""
        return []

    def lost_slots(self) -> dict[str, str]:
        """Return the slot if it is out of service."""
        return dict(self._service.lost)

    def submit(self, slot: str, assignment: Assignment) -> None:
        """Start a trial in the thread."""
        assert self._thread is None
        self._thread = threading.Thread(target=self._run, args=(slot, assignment), daemon=True)
        self._thread.start()

    def _run(self, slot: str, assignment: Assignment) -> None:
        record: TrialRecord | None = None
        lost: SlotLost | None = None
        try:
            self._end_leftovers(assignment)
            record = run_trial(
                assignment,
                self._engine,
                self._host,
                self._gpus,
                watch=(ProcessId.of(os.getpid()),),
                on_status=self._set_status,
                cancelled=self._cancelled.is_set,
            )
        except Cancelled:
            pass
        except BaseException as error:  # noqa: BLE001 -- each assignment has one outcome
            lost = SlotLost(f"{type(error).__name__}: {error}")
        outcome = Outcome(
            slot=slot, assignment=assignment, record=record, lost=lost, host=self._host
        )
        self._done.put(outcome)

    def _end_leftovers(self, assignment: Assignment) -> None:
        """End servers that an earlier driver of this run could not."""
        if not self._swept:
            mark = run_mark(assignment.trial.study, assignment.folder)
            sweep_marked(mark, logs=Path(assignment.folder, assignment.log).parent)
            self._swept = True

    def _set_status(self, status: Status) -> None:
        self._status = status

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Return the trial that ended, if one did."""
        try:
            outcome = self._done.get(timeout=timeout_s)
        except queue.Empty:
            return []
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        self._status = Status()
        if outcome.record is not None:
            self._service.ended(SLOT, outcome.record)
        elif outcome.lost is not None:
            self._service.died(SLOT, str(outcome.lost))
        return [outcome]

    def status(self) -> dict[str, Status]:
        """Return what the thread is doing."""
        return {SLOT: self._status} if self._thread is not None else {}

    def publish(self, numbers: SweepNumbers) -> None:
        """Show nothing: there is no dashboard."""

    def cancel(self) -> None:
        """Ask the running trial to stop."""
        self._cancelled.set()

    def close(self) -> None:
        """Stop the running trial and wait until its server is gone."""
        self._cancelled.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
