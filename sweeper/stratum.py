"""The search on one kind of hardware: what is launched on its slots, and what is told of it.

Nothing is told before it is on disk. A trial that a dying driver leaves has no row, so the next
start of the same command proposes it again.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from sweeper.cluster import Assignment, Executor, Outcome
from sweeper.errors import Failure, FailureClass, Stage
from sweeper.judging.witness import Witness
from sweeper.live import Live
from sweeper.planning.agenda import Ledger, is_waiting, next_trial
from sweeper.planning.families import ruled_out, rules
from sweeper.planning.plan import Plan
from sweeper.records import Point, Trial, TrialRecord, TrialState
from sweeper.sampler import Sampler
from sweeper.store import Store
from sweeper.study import Study


@dataclass
class Numbers:
    """Hands out the numbers of trials.

    Attributes:
        next: The first that is free.
    """

    next: int


@dataclass
class Stratum:
    """The search on one kind of hardware.

    Attributes:
        study: The study, its engine resolved, with the kind's part of the budget.
        store: Where records go; locked by us.
        executor: The slots of the kind.
        plan: The settings that may be launched.
        sampler: Told of each record after it is stored.
        records: Finished trials that belong to study and kind, in order of their end.
        live: Adds up what is published.
        numbers: Numbers of trials, shared by all kinds.
        say: Prints a line.
        now_s: Real monotonic seconds.
        running: Trials in flight.
        ended: Why nothing is to be launched now; empty while something is.
    """

    study: Study
    store: Store
    executor: Executor
    plan: Plan
    sampler: Sampler
    records: list[TrialRecord]
    live: Live
    numbers: Numbers
    say: Callable[[str], None]
    now_s: Callable[[], float] = time.monotonic
    running: list[Trial] = field(default_factory=list)
    ended: str = ""
    _learned: set[str] = field(default_factory=set)
    _ruled_out: set[str] = field(default_factory=set)
    _launched: int = 0
    _took: tuple[int, float] = (0, 0.0)
    _submitted_s: dict[int, float] = field(default_factory=dict)
    _seats: dict[int, str] = field(default_factory=dict)
    _alive: set[str] = field(default_factory=set)
    _idle_at: object = None

    def __post_init__(self) -> None:
        for record in self.records:
            self.sampler.tell(record)
        self._launched = sum(r.launched for r in self.records)
        self._witness = Witness(self.study, self.records, self.store.requests_of)

    @property
    def launches(self) -> int:
        """Server starts spent, the running ones among them."""
        return self._launched + len(self.running)

    @property
    def is_stranded(self) -> bool:
        """Whether something is to be launched and no slot is there for it."""
        return not self.running and not self.ended

    def submit(self) -> None:
        """Give each free slot a trial.

        Raises:
            StopSweep: The installation is broken.
        """
        free = self.executor.free_slots()
        self._alive = {*free, *(self._seats[t.number] for t in self.running)}
        # While nothing has changed, who was asked in vain would be so again.
        state = (len(self.records), len(self.running), frozenset(free))
        if state == self._idle_at:
            return
        self.ended = self._fill(free)
        if self.ended:
            self._idle_at = (len(self.records), len(self.running), frozenset(self._idle(free)))
            self.live.pause(self.now_s())
        else:
            free = self.executor.free_slots()
            self.live.note(self.now_s(), busy=len(self.running), free=len(free))

    def _idle(self, free: Iterable[str]) -> set[str]:
        return set(free) - set(self._seats.values())

    def _fill(self, free: Sequence[str]) -> str:
        """Submit to these slots; return why one of them got nothing."""
        if not free and not self.running:
            return self._ledger().spent() or ""
        idle = ""
        for slot in free:
            ledger = self._ledger()
            spent = ledger.spent()
            if spent is not None:
                return spent
            reason = self.sampler.stop_reason()
            trial = next_trial(ledger, _ask_nothing if reason else self.sampler.ask, slot)
            if trial is None:
                idle = reason or "nothing is left to launch"
                if is_waiting(ledger):
                    break
                continue
            self.numbers.next += 1
            self.running.append(trial)
            self._seats[trial.number] = slot
            self._submitted_s[trial.number] = self.now_s()
            self.executor.submit(slot, self._assignment(trial))
        return idle

    def _ledger(self) -> Ledger:
        return Ledger(
            study=self.study,
            records=self.records,
            running=self.running,
            next_number=self.numbers.next,
            settings=self.plan.settings,
            seats=self._seats,
            alive=self._alive,
            launched=self._launched,
            merit=self.sampler.merit,
        )

    def _assignment(self, trial: Trial) -> Assignment:
        engine = self.study.engine
        simulation = engine.simulation
        return Assignment(
            trial=trial,
            workloads=self.study.sent,
            limits=self.study.limits,
            folder=str(self.store.folder.resolve()),
            log=str(self.store.log_path(trial.number).relative_to(self.store.folder)),
            time_scale=simulation.time_scale if self.study.simulated else 1.0,
            env=tuple(simulation.environment().items()) if self.study.simulated else (),
            rival=self._witness.rival(trial),
            alone=engine.measure_alone and engine.slots_per_node > 1,
        )

    def owns(self, outcome: Outcome) -> bool:
        """Tell whether it is of a trial in flight here."""
        return outcome.assignment.trial.number in self._seats

    def take(self, outcome: Outcome, *, cancelled: bool) -> TrialRecord | None:
        """Store what ended and tell the sampler; None of a trial that was given up.

        Raises:
            UserError: The store cannot be written.
        """
        trial = outcome.assignment.trial
        self.running = [t for t in self.running if t.number != trial.number]
        del self._seats[trial.number]
        since_s = self._submitted_s.pop(trial.number)
        record = outcome.record
        if outcome.lost is not None and not cancelled:
            spent_s = (self.now_s() - since_s) * outcome.assignment.time_scale
            record = _lost_record(outcome, spent_s)
        if record is None:
            return None
        names = [workload.name for workload in self.study.workloads]
        told = sorted(record.measurements, key=lambda m: names.index(m.workload))
        record = self._witness.look(replace(record, measurements=tuple(told)))
        self.store.write(record)
        self._took = (self._took[0] + 1, self._took[1] + self.now_s() - since_s)
        record = replace(record, requests=())
        self.records.append(record)
        self._launched += record.launched
        self.sampler.tell(record)
        return record

    def learn(self) -> None:
        """Say which settings, not launched so far, the last failures rule out."""
        new = [r for r in rules(self.records, self.study) if r.reason not in self._learned]
        if not new:
            return
        self._learned |= {rule.reason for rule in new}
        trials = [*(record.trial for record in self.records), *self.running]
        launched = {trial.launch.key for trial in trials}
        for rule in new:
            found = ruled_out(self.plan.settings, (rule,)) - launched - self._ruled_out
            self._ruled_out |= found
            if found:
                many = f"{len(found)} setting{'s' * (len(found) > 1)}"
                self.say(f"no longer launched: {rule.reason} ({many})")

    @property
    def seconds_left(self) -> float | None:
        """Real seconds that are likely left; None before the first trial has ended."""
        ended, seconds = self._took
        if not ended:
            return None
        left = max(self.study.budget.launches - self._launched, 0)
        return left * seconds / ended / max(len(self._alive), 1)


def _ask_nothing(_: Collection[str]) -> Point | None:
    return None


def _lost_record(outcome: Outcome, spent_s: float) -> TrialRecord:
    return TrialRecord(
        trial=outcome.assignment.trial,
        state=TrialState.FAILED,
        failure=Failure(kind=FailureClass.NODE_LOST, stage=Stage.SERVING, line=str(outcome.lost)),
        host=outcome.host,
        started_at=datetime.now(UTC).isoformat(),
        phases_s={"lost": spent_s},
        log=outcome.assignment.log,
    )
