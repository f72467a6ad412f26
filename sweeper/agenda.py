"""What to launch next; pure, and a function of what is stored and what is running.

    1. a machine's fault: the same setting again, at most twice
    2. the baseline
    3. the known settings, in their order
    4. what the sampler asks for, while the budget lasts

A setting that has finished is never launched again. The number of launches never exceeds the
budget, whatever fails.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from sweeper.errors import Fault, StopSweep
from sweeper.plan import refusal
from sweeper.records import Launch, Point, Purpose, Trial, TrialRecord, TrialState
from sweeper.study import Study

MAX_RETRIES = 2
#: So many launches with the same installation fault end the sweep.
MAX_INSTALLATION_FAULTS = 2

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
    """

    study: Study
    records: Sequence[TrialRecord]
    running: Sequence[Trial]
    next_number: int

    @property
    def launches(self) -> int:
        """Server starts spent, the running ones among them."""
        return sum(r.launched for r in self.records) + len(self.running)

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


def next_trial(ledger: Ledger, ask: Ask) -> Trial | None:
    """Return the next trial to launch, or None if nothing is to be done now.

    Raises:
        StopSweep: The installation is broken.
    """
    _stop_on_broken_installation(ledger.records)
    if ledger.spent() is not None:
        return None
    study, settled = ledger.study, ledger.settled_keys()
    for record in ledger.records:
        if record.state is TrialState.FAILED and record.trial.launch.key not in settled:
            old = record.trial
            return _trial(ledger, old.purpose, old.point, old.launch)
    base = study.baseline_launch()
    if base.key not in settled:
        return _trial(ledger, Purpose.BASELINE, {}, base)
    for point in study.known:
        launch = study.launch(point)
        if launch.key not in settled and refusal(study, point) is None:
            return _trial(ledger, Purpose.KNOWN, point, launch)
    asked = ask(settled)
    if asked is None:
        return None
    return _trial(ledger, Purpose.SEARCH, asked, study.launch(asked))


def _trial(ledger: Ledger, purpose: Purpose, point: Point, launch: Launch) -> Trial:
    earlier = [r.trial.number for r in ledger.records if r.trial.launch.key == launch.key]
    return Trial(
        study=ledger.study.name,
        number=ledger.next_number,
        purpose=purpose,
        point=point,
        launch=launch,
        attempt=len(earlier),
        retry_of=earlier[0] if earlier else None,
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


def fitting(records: Iterable[TrialRecord], study: Study) -> tuple[list[TrialRecord], list[str]]:
    """Return the stored records that still mean something for `study`, and why others do not.

    Returns:
        The fitting records in their order, and one line for each reason to leave some out.
    """
    kept: list[TrialRecord] = []
    left: Counter[str] = Counter()
    base = study.baseline_launch().key
    for record in records:
        trial = record.trial
        if record.failure and record.failure.policy.fault is Fault.INSTALLATION:
            left["the installation was broken then; they are tried again"] += 1
        elif trial.context != study.context:
            left["other workloads or another simulation"] += 1
        elif trial.purpose is Purpose.BASELINE:
            if trial.launch.key == base:
                kept.append(record)
            else:
                left["the baseline's flags have changed"] += 1
        elif not study.space.contains(trial.point):
            left["their setting is outside the space"] += 1
        elif study.launch(trial.point).key != trial.launch.key:
            left["flags that all launches share have changed"] += 1
        else:
            kept.append(record)
    return kept, [f"{n} of the stored trials left out: {why}" for why, n in left.items()]
