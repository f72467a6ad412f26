"""The slots of one kind of hardware, as an executor of their own."""

from sweeper.cluster.assignment import Assignment, Status
from sweeper.cluster.base import Executor, Outcome
from sweeper.cluster.metrics import SweepNumbers


class OnHardware:
    """A view of an executor in which only one kind of slots is in service.

    What concerns all slots is asked of the executor itself: waiting, publishing, the end.

    Args:
        executor: The executor.
        hardware: The kind.
    """

    def __init__(self, executor: Executor, hardware: str | None) -> None:
        self._executor = executor
        self._hardware = hardware

    @property
    def dashboard_url(self) -> str | None:
        """Where people can watch."""
        return self._executor.dashboard_url

    def hardware_of(self, slot: str) -> str | None:
        """Return the name of a slot's GPUs."""
        return self._executor.hardware_of(slot)

    def _is_ours(self, slot: str) -> bool:
        return self.hardware_of(slot) == self._hardware

    def free_slots(self) -> list[str]:
        """Return the idle slots of the kind."""
        return [slot for slot in self._executor.free_slots() if self._is_ours(slot)]

    def starting_slots(self) -> list[str]:
        """Return the slots of the kind that are on their way."""
        return [slot for slot in self._executor.starting_slots() if self._is_ours(slot)]

    def lost_slots(self) -> dict[str, str]:
        """Return the slots of the kind that are out of service."""
        return {s: why for s, why in self._executor.lost_slots().items() if self._is_ours(s)}

    def submit(self, slot: str, assignment: Assignment) -> None:
        """Start a trial on an idle slot."""
        self._executor.submit(slot, assignment)

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Return what ended on any slot."""
        return self._executor.wait(timeout_s)

    def status(self) -> dict[str, Status]:
        """Return what each busy slot of the kind does."""
        return {s: status for s, status in self._executor.status().items() if self._is_ours(s)}

    def publish(self, numbers: SweepNumbers) -> None:
        """Show how the sweep stands."""
        self._executor.publish(numbers)

    def cancel(self) -> None:
        """Ask all running trials to stop."""
        self._executor.cancel()

    def close(self) -> None:
        """End everything."""
        self._executor.close()
