"""What to launch next; pure, and a function of what is stored and what is running.

    1. a machine's fault: the same setting again, at most twice
    2. the baseline, and again after every `baseline.every` launches
    3. the known settings, in their order
    4. what the sampler asks for, while the budget lasts but for its reserve
    5. from the reserve: confirmations (`confirmation.py`), or the baseline a last time

Several slots are unlike machines: each begins with the baseline, up to a quarter of the budget,
and the launches between two baselines are those of one slot.

But for 2 and 5 a setting that has finished is never launched again, nor one of a family that cannot work
(`families.py`). The number of launches never exceeds the budget, whatever fails.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sweeper.errors import Failure, Fault, StopSweep
from sweeper.judging.confirmation import Merit, confirmation_block, next_confirmation, no_merit
from sweeper.planning.families import covered, ruled_out, rules
from sweeper.planning.misfits import misfit
from sweeper.planning.plan import refusal
from sweeper.records import Launch, Limits, Point, Purpose, Trial, TrialRecord, TrialState
from sweeper.study import Study

MAX_RETRIES = 2
#: So many launches with the same installation fault end the sweep.
MAX_INSTALLATION_FAULTS = 2

#: A quarter of the budget at most tells what several slots are worth.
SLOT_SHARE = 4

#: How often the sampler is asked again where a plan is too large for its families to be listed.
MOST_ASKS = 100

#: Asks the sampler for a point whose launch key is in none of the given ones.
Ask = Callable[[Collection[str]], Point | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What has been done, and is being done, of one study.

    Attributes:
        study: The study.
        records: Finished trials that belong to it.
        running: Trials in flight.
        next_number: The first number that is free.
        settings: The plan's: launch key -> (point, launch).
        seats: Number of a trial in flight -> its slot.
        alive: All slots in service; a single one needs not be told.
        launched: Server starts of finished trials; they are counted if None.
        merit: Number of a trial -> what the sampler makes of settings measured before it.
    """

    study: Study
    records: Sequence[TrialRecord]
    running: Sequence[Trial]
    next_number: int
    settings: Mapping[str, tuple[Point, Launch]] = field(default_factory=dict)
    seats: Mapping[int, str] = field(default_factory=dict)
    alive: Collection[str] = ()
    launched: int | None = None
    merit: Merit = no_merit

    @property
    def launches(self) -> int:
        """Server starts spent, the running ones among them."""
        launched = self.launched
        if launched is None:
            launched = sum(r.launched for r in self.records)
        return launched + len(self.running)

    @property
    def hours(self) -> float:
        """Engine hours of one slot spent by finished trials."""
        seconds = sum(v for r in self.records for k, v in r.phases_s.items() if "." not in k)
        return seconds / 3600.0

    def spent(self) -> str | None:
        """Return which budget is used up, or None."""
        budget = self.study.budget
        if self.launches >= budget.launches:
            return f"all {budget.launches} launches of the budget are used"
        if budget.hours is not None and self.hours >= budget.hours:
            return f"the {budget.hours:g} hours of the budget are used"
        return None

    @property
    def reserve(self) -> int:
        """Launches that the search leaves alone: confirmations, or the last baseline."""
        study = self.study
        if study.budget.confirm or study.baseline.every is None:
            return study.budget.confirm
        return max(1, min(len(self.alive), self._most_based))

    @property
    def _most_based(self) -> int:
        """Slots on which the baseline is launched for their own sake."""
        return self.study.budget.launches // SLOT_SHARE

    def may_search(self) -> bool:
        """Tell whether the budget still allows a launch that is not from the reserve."""
        budget, launches = self.study.budget, self.launches
        if launches and launches >= budget.launches - self.reserve:
            return False
        done = launches - len(self.running)
        hours = self.hours + self.reserve * self.hours / done if done else 0.0
        if budget.hours is not None and done and hours >= budget.hours:
            return False
        return not self._confirms

    @property
    def _confirms(self) -> bool:
        """Whether confirmations have begun and can go on."""
        finished, running = confirmation_block(self.records, self.running)
        if not 0 < len(finished) + len(running) < self.study.budget.confirm:
            return False
        if running:
            return True
        return next_confirmation(self.study, self.records, (), merit=self.merit) is not None

    @property
    def _baselines(self) -> list[TrialRecord]:
        base = self.study.baseline_launch().key
        return [r for r in self.records if r.trial.launch.key == base]

    @property
    def _baseline_works(self) -> bool:
        """Whether the baseline may be launched more than once."""
        return not any(r.state is TrialState.INFEASIBLE for r in self._baselines)

    def is_due(self, slot: str | None, after: int) -> bool:
        """Tell whether the baseline has not run for so many launches on a slot, and can run."""
        return self._baseline_works and self.since_baseline(slot) >= after

    def since_baseline(self, slot: str | None = None) -> int:
        """Return the launches after the baseline's last one, on one slot or on all."""
        base = self.study.baseline_launch().key
        started = self._started(slot)
        last = max((t.number for t in started if t.launch.key == base), default=-1)
        return sum(t.number > last for t in started)

    def lacks_baseline(self, slot: str | None) -> bool:
        """Tell whether a slot beside others is to begin with the baseline."""
        if slot is None or len(self.alive) < 2 or not self._baseline_works:
            return False
        base = self.study.baseline_launch().key
        based = {r.host.slot for r in self._baselines if r.host is not None}
        based |= {self.seats.get(t.number, "") for t in self.running if t.launch.key == base}
        if any(t.launch.key == base for t in self._started(slot)):
            return False
        return len(based - {slot}) < self._most_based

    def _started(self, slot: str | None) -> list[Trial]:
        """Return the trials that started a server on a slot, or on any.

        After a restart a name may stand for another machine; its last trial tells which.
        """
        if slot is None or len(self.alive) < 2:
            return [r.trial for r in self.records if r.launched] + list(self.running)
        here = [r for r in self.records if r.launched and r.host and r.host.slot == slot]
        last = max(here, key=lambda r: r.trial.number, default=None)
        host = last.host.host if last is not None and last.host is not None else None
        return [r.trial for r in here if r.host is not None and r.host.host == host] + [
            t for t in self.running if self.seats.get(t.number) == slot
        ]

    def settled_keys(self) -> set[str]:
        """Return the settings that need no launch: finished, or failed too often, or running."""
        failures = Counter(
            r.trial.launch.key for r in self.records if r.state is TrialState.FAILED
        )
        settled = {k for k, n in failures.items() if n > MAX_RETRIES}
        settled |= {
            r.trial.launch.key
            for r in self.records
            if r.state is not TrialState.FAILED
            or (r.failure is not None and not r.failure.policy.retry)
        }
        return settled | {t.launch.key for t in self.running}


def is_waiting(ledger: Ledger) -> bool:
    """Tell whether no slot gets a trial before one ends: the reserve waits for the search."""
    in_search = any(t.purpose is not Purpose.CONFIRM for t in ledger.running)
    return in_search and not ledger.may_search()


def next_trial(ledger: Ledger, ask: Ask, slot: str | None = None) -> Trial | None:
    """Return the next trial to launch, or None if nothing is to be done now.

    Args:
        ledger: What has been done, and is being done.
        ask: The sampler.
        slot: Where it would run; None where there is only one. Another slot may get a trial
            where this one gets none.

    Raises:
        StopSweep: The installation is broken.
    """
    _stop_on_broken_installation(ledger.records)
    if ledger.spent() is not None:
        return None
    if ledger.may_search():
        trial = _search(ledger, ask, slot)
        if trial is not None:
            return trial
    return _from_reserve(ledger, slot)


def _search(ledger: Ledger, ask: Ask, slot: str | None) -> Trial | None:
    study, settled = ledger.study, ledger.settled_keys()
    learned = rules(ledger.records, study)
    for record in ledger.records:
        if record.state is TrialState.FAILED and record.trial.launch.key not in settled:
            old = record.trial
            if covered(old.point, old.launch, learned) is None:
                return _trial(ledger, old.purpose, old.point, old.launch)
    base = study.baseline_launch()
    every = study.baseline.every
    due = every is not None and ledger.is_due(slot, every)
    if base.key not in settled or due or ledger.lacks_baseline(slot):
        return _trial(ledger, Purpose.BASELINE, {}, base)
    for point in study.known:
        launch = study.launch(point)
        if (
            launch.key not in settled
            and refusal(study, point) is None
            and covered(point, launch, learned) is None
        ):
            return _trial(ledger, Purpose.KNOWN, point, launch)
    taken = settled | ruled_out(ledger.settings, learned)
    for _ in range(MOST_ASKS):
        asked = ask(taken)
        if asked is None:
            return None
        launch = study.launch(asked)
        if covered(asked, launch, learned) is None:
            return _trial(ledger, Purpose.SEARCH, asked, launch)
        taken.add(launch.key)
    return None


def _from_reserve(ledger: Ledger, slot: str | None) -> Trial | None:
    """Return a launch that needs the search's results, once all of them are there."""
    study = ledger.study
    if any(t.purpose is not Purpose.CONFIRM for t in ledger.running):
        return None
    if study.budget.confirm:
        chosen = next_confirmation(
            study,
            ledger.records,
            ledger.running,
            slot=slot,
            seats=ledger.seats,
            alive=ledger.alive,
            merit=ledger.merit,
        )
        return _trial(ledger, Purpose.CONFIRM, *chosen) if chosen else None
    if study.baseline.every is not None and ledger.is_due(slot, 1):
        return _trial(ledger, Purpose.BASELINE, {}, study.baseline_launch())
    return None


def _trial(ledger: Ledger, purpose: Purpose, point: Point, launch: Launch) -> Trial:
    faults = [
        r.trial.number
        for r in ledger.records
        if r.trial.launch.key == launch.key and r.state is TrialState.FAILED
    ]
    return Trial(
        study=ledger.study.name,
        number=ledger.next_number,
        purpose=purpose,
        point=point,
        launch=launch,
        attempt=len(faults),
        retry_of=faults[0] if faults else None,
        context=ledger.study.context,
    )


def _stop_on_broken_installation(records: Iterable[TrialRecord]) -> None:
    faults = [r.failure for r in records if r.failure and r.failure.policy.stops_sweep]
    complete = any(r.state is TrialState.COMPLETE for r in records)
    for failure in faults:
        alike = sum(f.kind is failure.kind for f in faults)
        # Where some launches work, the fault is of those settings, not of the installation.
        if alike >= MAX_INSTALLATION_FAULTS and not complete:
            raise StopSweep(
                f"{alike} launches ended with {failure.kind}: {failure.line}\n"
                f"remedy: {failure.policy.remedy}"
            )


def _with_secrets(record: TrialRecord, study: Study) -> TrialRecord:
    """Return the record with the study's own launch, which is equal but for what is not stored."""
    trial = record.trial
    launch = study.launch(trial.point) if trial.point else study.baseline_launch()
    return replace(record, trial=replace(trial, launch=launch))


def _has_more_time(failure: Failure, limits: Limits) -> bool:
    """Tell whether a start passed a limit that has been raised since.

    Which of the two it passed is not stored: where the smaller one was lowered since, it is tried
    once more in vain.
    """
    passed, now = failure.limit_s, (limits.start_s, limits.silence_s)
    return passed is not None and passed not in now and passed < max(now)


def fitting(records: Iterable[TrialRecord], study: Study) -> tuple[list[TrialRecord], list[str]]:
    """Return the stored records that still mean something for `study`, and why others do not.

    Returns:
        The fitting records in their order, and one line for each reason to leave some out.
    """
    kept: list[TrialRecord] = []
    left: Counter[str] = Counter()
    base, context = study.baseline_launch().key, study.context
    for record in records:
        why = misfit(record, study, baseline_key=base, context=context)
        if record.failure and record.failure.policy.fault is Fault.INSTALLATION:
            why = "the installation was broken then; they are tried again"
        if record.failure and _has_more_time(record.failure, study.limits):
            why = "they have more time to start now; they are tried again"
        if why is None:
            kept.append(_with_secrets(record, study))
        else:
            left[why] += 1
    return kept, [f"{n} of the stored trials left out: {why}" for why, n in left.items()]
