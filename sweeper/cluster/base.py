"""The Executor seam: where trials run, and how many at once.

    submit(slot, assignment) -> ... -> wait() -> (slot, TrialRecord or the error that ended it)

An executor returns exactly one outcome for each submitted assignment. Outcomes come in any order.
A slot runs one trial at a time; whoever submits to a busy slot has a defect.
"""

from dataclasses import dataclass
from typing import Protocol

from sweeper.cluster.assignment import Assignment, Cancelled, Status
from sweeper.cluster.metrics import SweepNumbers
from sweeper.errors import SlotLost
from sweeper.records import HostFacts, TrialRecord

__all__ = ["Assignment", "Cancelled", "Executor", "Outcome", "Status", "SweepNumbers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one assignment ended on one slot.

    Attributes:
        slot: Name of the slot.
        assignment: What it was to run.
        record: The record; None if there is none.
        lost: Why there is no record; None for a cancelled trial.
        host: Where it ran, for want of a record that says so; None if not known.
    """

    slot: str
    assignment: Assignment
    record: TrialRecord | None = None
    lost: SlotLost | None = None
    host: HostFacts | None = None


class Executor(Protocol):
    """Owns the slots of one sweep."""

    @property
    def dashboard_url(self) -> str | None:
        """Where people can watch; None if nowhere."""

    def hardware_of(self, slot: str) -> str | None:
        """Return the name of a slot's GPUs; None for servers without."""

    def free_slots(self) -> list[str]:
        """Return the slots that are alive and idle; may wait for one until somebody interrupts."""

    def starting_slots(self) -> list[str]:
        """Return the slots in service that are on their way and take no trial yet."""

    def lost_slots(self) -> dict[str, str]:
        """Return each slot that is out of service -> why."""

    def submit(self, slot: str, assignment: Assignment) -> None:
        """Start a trial on an idle slot; returns at once."""

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Return what ended, waiting at most `timeout_s` real seconds for the first."""

    def status(self) -> dict[str, Status]:
        """Return what each busy slot is doing; quick, never blocks on a hung slot."""

    def publish(self, numbers: SweepNumbers) -> None:
        """Show how the sweep stands where people watch; quick, called twice a second."""

    def cancel(self) -> None:
        """Ask all running trials to stop their servers cleanly; their outcomes still come."""

    def close(self) -> None:
        """End everything at once. No server is left."""
