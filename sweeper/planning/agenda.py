"""What to launch next; pure, and a function of what is stored and what is running.

    1. a machine's fault: the same setting again, at most twice
    2. the baseline, and again after every `baseline.every` launches
    3. the known settings, in their order
    4. what the sampler asks for, while the budget lasts but for its reserve
    5. from the reserve: confirmations (`confirmation.py`), or the baseline a last time

But for 2 and 5 a setting that has finished is never launched again, nor one of a family that cannot work
(`families.py`). The number of launches never exceeds the budget, whatever fails.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sweeper.errors import Fault, StopSweep
from sweeper.judging.confirmation import confirmation_block, next_confirmation
from sweeper.planning.families import covered, ruled_out, rules
from sweeper.planning.misfits import misfit
from sweeper.planning.plan import refusal
from sweeper.records import Launch, Point, Purpose, Trial, TrialRecord, TrialState
from sweeper.study import Study

MAX_RETRIES = 2
#: So many launches with the same installation fault end the sweep.
MAX_INSTALLATION_FAULTS = 2

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
    """

    study: Study
    records: Sequence[TrialRecord]
    running: Sequence[Trial]
    next_number: int
    settings: Mapping[str, tuple[Point, Launch]] = field(default_factory=dict)

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

    @property
    def reserve(self) -> int:
        """Launches that the search leaves alone: confirmations, or the last baseline."""
        study = self.study
        return study.budget.confirm or int(study.baseline.every is not None)

    def may_search(self) -> bool:
        """Tell whether the budget still allows a launch that is not from the reserve."""
        budget, launches = self.study.budget, self.launches
        finished, running = confirmation_block(self.records, self.running)
        if 0 < len(finished) + len(running) < budget.confirm:
            return False
        if launches and launches >= budget.launches - self.reserve:
            return False
        done = launches - len(self.running)
        if budget.hours is None or not done:
            return True
        return self.hours + self.reserve * self.hours / done < budget.hours

    def since_baseline(self) -> int:
        """Return the launches after the baseline's last one."""
        base = self.study.baseline_launch().key
        started = [r.trial for r in self.records if r.launched] + list(self.running)
        last = max((t.number for t in started if t.launch.key == base), default=-1)
        return sum(t.number > last for t in started)

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
    if ledger.may_search():
        trial = _search(ledger, ask)
        if trial is not None:
            return trial
    return _from_reserve(ledger)


def _search(ledger: Ledger, ask: Ask) -> Trial | None:
    study, settled = ledger.study, ledger.settled_keys()
    learned = rules(ledger.records, study)
    for record in ledger.records:
        if record.state is TrialState.FAILED and record.trial.launch.key not in settled:
            old = record.trial
            if covered(old.point, old.launch, learned) is None:
                return _trial(ledger, old.purpose, old.point, old.launch)
    base = study.baseline_launch()
    every = study.baseline.every
    if base.key not in settled or (every is not None and ledger.since_baseline() >= every):
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


def _from_reserve(ledger: Ledger) -> Trial | None:
    """Return a launch that needs the search's results, once all of them are there."""
    study = ledger.study
    if any(t.purpose is not Purpose.CONFIRM for t in ledger.running):
        return None
    if study.budget.confirm:
        chosen = next_confirmation(study, ledger.records, ledger.running)
        return _trial(ledger, Purpose.CONFIRM, *chosen) if chosen else None
    if study.baseline.every is not None and ledger.since_baseline():
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
        if why is None:
            kept.append(record)
        else:
            left[why] += 1
    return kept, [f"{n} of the stored trials left out: {why}" for why, n in left.items()]


def newest_hardware(records: Sequence[TrialRecord]) -> str | None:
    """Return the GPUs of the last measured trial; None where none was measured."""
    names = [r.host.gpu_name for r in records if r.host is not None and r.measurements]
    return names[-1] if names else None


def on_hardware(
    records: Sequence[TrialRecord], hardware: str | None
) -> tuple[list[TrialRecord], int]:
    """Return the records that may be compared with what is measured on `hardware`.

    Speeds of unlike GPUs are never mixed: each kind needs a baseline and a search of its own. GPUs
    whose name was not told are not known to be unlike.

    Returns:
        The records, and how many were left out.
    """
    kept = [
        r
        for r in records
        if r.host is None or None in (r.host.gpu_name, hardware) or r.host.gpu_name == hardware
    ]
    return kept, len(records) - len(kept)
