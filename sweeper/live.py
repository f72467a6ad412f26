"""How a sweep stands now, in the numbers that are published while it runs.

records, running trials, status --Live.numbers--> SweepNumbers --Executor.publish--> dashboards
slots busy and free, when      --Live.note--> the share of the slots' time that had a trial

A call costs the new records only, but for the best setting, which costs all of them: it is looked
for as often as that takes a small share of the time.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sweeper.cluster import Status, SweepNumbers
from sweeper.judging.standings import Standing, baseline, best, with_baseline
from sweeper.records import Purpose, Trial, TrialRecord
from sweeper.study import Study

#: Share of the driver's time that the search for the best setting may take.
BEST_SHARE = 0.02


@dataclass
class Live:
    """Adds up what a sweep publishes.

    Attributes:
        study: The study.
        settings: Keys of all settings that can be launched; None where they are too many.
        kind: The kind of hardware; empty where there is none.
        clock_s: Real monotonic seconds, for what a search for the best setting takes.
    """

    study: Study
    settings: Collection[str] | None
    kind: str = ""
    clock_s: Callable[[], float] = time.monotonic
    _seen: int = 0
    _outcomes: Counter[str] = field(default_factory=Counter)
    _phases_s: dict[str, float] = field(default_factory=dict)
    _launched: set[str] = field(default_factory=set)
    _gpu_hours: float = 0.0
    _leaders: tuple[Standing | None, Standing | None] = (None, None)
    _looked_at: int = 0
    _look_again_s: float = float("-inf")
    _busy_s: float = 0.0
    _all_s: float = 0.0
    _noted: tuple[float, int, int] | None = None

    def note(self, now_s: float, *, busy: int, free: int) -> None:
        """Note how many slots have a trial from now on, and how many could have one.

        To be called at each change while settings are left; `pause` ends the counting.
        """
        self.pause(now_s)
        self._noted = (now_s, busy, busy + free)

    def freed(self, now_s: float, count: int) -> None:
        """Note that so many trials have ended."""
        if self._noted is not None:
            _, busy, slots = self._noted
            self.note(now_s, busy=busy - count, free=slots - busy + count)

    def pause(self, now_s: float) -> None:
        """Stop counting: nothing is left that a free slot could take."""
        if self._noted is not None:
            since_s, busy, slots = self._noted
            self._busy_s += busy * (now_s - since_s)
            self._all_s += slots * (now_s - since_s)
        self._noted = None

    @property
    def busy_share(self) -> float | None:
        """Share of the slots' time in which they had a trial, while settings were left."""
        return self._busy_s / self._all_s if self._all_s > 0 else None

    def numbers(
        self,
        records: Sequence[TrialRecord],
        running: Sequence[Trial],
        *,
        status: Mapping[str, Status],
        lost: int,
        stopping: bool,
        now_s: float,
    ) -> SweepNumbers:
        """Return how the sweep stands.

        Args:
            records: Finished trials; each call's begin with the last one's.
            running: Trials in flight.
            status: Slot -> what it does.
            lost: Slots out of service.
            stopping: Whether somebody asked for the end.
            now_s: Real monotonic seconds.
        """
        self._take(records[self._seen :])
        self._seen = len(records)
        base, top = self.leaders(records, now_s=now_s, at_once=not running)
        launches = self._outcomes.total() + len(running)
        budget = self.study.budget
        hours = sum(self._phases_s.values()) / 3600.0
        left = None
        if self.settings is not None:
            flying = {t.launch.key for t in running if t.launch.key in self.settings}
            left = len(self.settings) - len(self._launched | flying)
        return SweepNumbers(
            study=self.study.name,
            engine=self.study.engine.kind,
            state=_state(running, stopping),
            launches=dict(self._outcomes),
            running=len(running),
            launches_left=max(budget.launches - launches, 0),
            settings_left=left,
            best_tok_s=self._speed(top),
            baseline_tok_s=self._speed(base),
            phases_s=dict(self._phases_s),
            gpu_hours=self._gpu_hours,
            gpu_hours_left=None
            if budget.hours is None
            else max(budget.hours - hours, 0.0) * max(self.study.engine.gpus, 1),
            busy_share=self.busy_share,
            slots_s=self._all_s,
            slots_lost=lost,
            slots=dict(status),
        )

    def leaders(
        self, records: Sequence[TrialRecord], *, now_s: float, at_once: bool
    ) -> tuple[Standing | None, Standing | None]:
        """Return the baseline and the best setting, as of the last search for them.

        Args:
            records: Finished trials; each call's begin with the last one's.
            now_s: Real monotonic seconds.
            at_once: Whether it must be as of now.
        """
        if len(records) != self._looked_at and (at_once or now_s >= self._look_again_s):
            begun_s = self.clock_s()
            found = with_baseline(records, self.study.objectives, self.study.slos)
            self._leaders = baseline(found), best(found, self.study.objectives)
            self._looked_at = len(records)
            self._look_again_s = now_s + (self.clock_s() - begun_s) / BEST_SHARE
        return self._leaders

    def _speed(self, standing: Standing | None) -> dict[str, float]:
        record = standing.records[-1] if standing is not None else None
        workload = self.study.objectives[0].workload
        measurement = record.measurement(workload) if record is not None else None
        speed = measurement.output_tok_s if measurement is not None else None
        return {} if speed is None else {self.kind: speed}

    def _take(self, records: Sequence[TrialRecord]) -> None:
        for record in records:
            if self.settings is not None and record.trial.launch.key in self.settings:
                self._launched.add(record.trial.launch.key)
            if record.launched:
                self._outcomes[str(record.state)] += 1
            self._gpu_hours += record.gpu_hours
            for phase, seconds in record.phases_s.items():
                if "." not in phase:
                    self._phases_s[phase] = self._phases_s.get(phase, 0.0) + seconds


def _state(running: Sequence[Trial], stopping: bool) -> str:
    if stopping:
        return "stopping"
    if not running:
        return "ended"
    confirming = any(t.purpose is Purpose.CONFIRM for t in running)
    return "confirming" if confirming else "searching"
