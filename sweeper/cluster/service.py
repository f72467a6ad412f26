"""Which slots stay in service, from how their trials end; no I/O.

GPU memory that did not come back, or is held before a start -> out, while another slot is in
three such trials in a row, whoever guessed it               -> out, the last slot too
three machine faults in a row while another slot does well   -> out
the actor dies more than three times without a trial between -> out
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sweeper.errors import FailureClass, Fault, Stage
from sweeper.records import TrialRecord

#: So many faults of one slot in a row are no accident.
MOST_IN_A_ROW = 3
#: Where the memory is seen to be held by others, not guessed from a log.
_SEEN = frozenset({Stage.ARGS, Stage.SHUTDOWN})


@dataclass(slots=True)
class _Health:
    faults: int = 0
    held: int = 0
    deaths: int = 0
    does_well: bool = False
    line: str = ""


@dataclass(slots=True)
class Service:
    """The slots of one sweep, and why some are out of service.

    Attributes:
        lost: Slot -> why it is out.
    """

    lost: dict[str, str] = field(default_factory=dict)
    _slots: dict[str, _Health] = field(default_factory=dict)

    def add(self, slots: Iterable[str]) -> None:
        """Take slots into service."""
        for slot in slots:
            self._slots.setdefault(slot, _Health())

    def lose(self, slot: str, why: str) -> None:
        """Take a slot out of service; the first reason stays."""
        self.lost.setdefault(slot, why)

    def died(self, slot: str, why: str) -> None:
        """Note that the slot's process ended with a trial in its hands, or did not start."""
        health = self._slots[slot]
        health.deaths += 1
        health.does_well = False
        if health.deaths > MOST_IN_A_ROW:
            self.lose(slot, f"{why}, {health.deaths} times in a row")

    def ended(self, slot: str, record: TrialRecord) -> None:
        """Note how a trial ended on a slot."""
        health, failure = self._slots[slot], record.failure
        health.deaths = 0
        is_machine = failure is not None and failure.policy.fault is Fault.MACHINE
        health.faults = health.faults + 1 if is_machine else 0
        health.does_well = not is_machine
        health.line = str(failure) if failure is not None else ""
        left = record.reason if record.launched else None
        is_held = failure is not None and failure.kind is FailureClass.GPU_MEMORY_NOT_FREE
        health.held = health.held + 1 if is_held or left else 0
        is_seen = left is not None or (failure is not None and failure.stage in _SEEN)
        alone = not any(s != slot and s not in self.lost for s in self._slots)
        if health.held >= MOST_IN_A_ROW or (health.held and is_seen and not alone):
            self.lose(slot, left or health.line)
        self._compare()

    def _compare(self) -> None:
        """Take out slots that fail where others do not."""
        well = {s for s, h in self._slots.items() if h.does_well and s not in self.lost}
        for slot, health in self._slots.items():
            if health.faults >= MOST_IN_A_ROW and well - {slot}:
                self.lose(slot, f"{health.faults} machine faults in a row, last {health.line}")
