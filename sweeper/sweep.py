"""The loop of a sweep, over the searches on each kind of hardware and what they share.

while a stratum has a next trial:
    submit it to a free slot; wait; write the record; tell the sampler; show it
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sweeper.cluster import Executor, Status, merged
from sweeper.errors import StopSweep
from sweeper.report import write_report
from sweeper.store import Store
from sweeper.stratum import Stratum
from sweeper.study import Study
from sweeper.terminal.display import Display, View
from sweeper.terminal.interrupt import Interrupt
from sweeper.terminal.lines import best_text

_POLL_S = 0.5
#: Real seconds between two writings of the report while the sweep runs.
_REPORT_EVERY_S = 60.0
#: Share of the driver's time that the report may take: it grows with the rows.
_REPORT_SHARE = 0.05


@dataclass
class Sweep:
    """One run of the loop over one study.

    Attributes:
        study: The study with its whole budget.
        store: Where records go.
        executor: All slots.
        strata: The search on each kind of hardware, at least one.
        display: Where people look.
        interrupt: Looked at twice a second.
        now_s: Real monotonic seconds.
    """

    study: Study
    store: Store
    executor: Executor
    strata: Sequence[Stratum]
    display: Display
    interrupt: Interrupt
    now_s: Callable[[], float] = time.monotonic
    _interrupted: bool = False
    _status: Mapping[str, Status] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._begun_s = self.now_s()
        self._report_due_s = self._begun_s + _REPORT_EVERY_S

    def run(self) -> None:
        """Run until the budget is spent, nothing is left, or somebody interrupts.

        Raises:
            StopSweep: The installation is broken, or no slot is left.
            UserError: The store cannot be written.
        """
        while True:
            if not self._interrupted:
                self._submit()
            if not (self._is_running or self._is_waiting):
                return
            # Free slots have got their trials; what follows costs them no time.
            self._status = self.executor.status()
            self.display.update(self.view())
            self._publish()
            self._report()
            self._collect()
            if self.interrupt.count > 1:
                return
            if self.interrupt.count == 1 and not self._interrupted:
                self._interrupted = True
                self.display.say("stopping the running servers; again to stop at once")
                self.executor.cancel()

    @property
    def _is_running(self) -> bool:
        return any(s.running for s in self.strata)

    @property
    def _is_waiting(self) -> bool:
        """Whether a search goes on once a slot of its kind has started, while others are over."""
        if self._interrupted:
            return False
        return any(s.is_stranded and s.executor.starting_slots() for s in self.strata)

    def _submit(self) -> None:
        for stratum in self.strata:
            stratum.submit()
        if self._is_running:
            return
        # With no trial anywhere the executor waits for slots that are starting.
        for stratum in self.strata:
            if stratum.is_stranded:
                stratum.submit()
        if self.interrupt.count:
            self._interrupted = True  # while a slot was waited for
        elif all(s.is_stranded for s in self.strata) and not self._is_waiting:
            lost = "; ".join(f"{s}: {why}" for s, why in self.executor.lost_slots().items())
            raise StopSweep(f"no slot is left ({lost})")

    def _collect(self) -> None:
        outcomes = self.executor.wait(_POLL_S)
        owned = [(s, [o for o in outcomes if s.owns(o)]) for s in self.strata]
        for stratum, ended in owned:
            stratum.live.freed(self.now_s(), len(ended))
        for stratum, ended in owned:
            for outcome in ended:
                record = stratum.take(outcome, cancelled=self._interrupted)
                if record is None:
                    continue
                self.display.finished(record, self.view())
                if record.failure is not None:
                    stratum.learn()

    def _publish(self) -> None:
        self.executor.publish(
            merged(
                [
                    s.live.numbers(
                        s.records,
                        s.running,
                        status={n: self._status[n] for n in s.executor.status()},
                        lost=len(s.executor.lost_slots()),
                        stopping=self._interrupted,
                        now_s=self.now_s(),
                    )
                    for s in self.strata
                ]
            )
        )

    def _report(self) -> None:
        begun_s = self.now_s()
        if begun_s >= self._report_due_s:
            write_report(self.store.folder)
            took_s = self.now_s() - begun_s
            self._report_due_s = begun_s + max(_REPORT_EVERY_S, took_s / _REPORT_SHARE)

    def why_it_ended(self, stratum: Stratum) -> str:
        """Return why a search ended, and how well its slots were used."""
        share = stratum.live.busy_share
        ended = "interrupted" if self._interrupted else stratum.ended or "no slot is left"
        return ended + (
            "" if share is None else f"; the slots had a trial {share:.1%} of the time"
        )

    def view(self) -> View:
        """Return what is to be shown now."""
        first, several = self.strata[0], len(self.strata) > 1
        left = [s.seconds_left for s in self.strata]
        return View(
            study=self.study,
            records=[r for s in self.strata for r in s.records] if several else first.records,
            running=[t for s in self.strata for t in s.running],
            status=self._status,
            launches=sum(s.launches for s in self.strata),
            elapsed_s=self.now_s() - self._begun_s,
            seconds_left=None if None in left else max(x for x in left if x is not None),
            best=tuple(self._best_text(s) for s in self.strata),
        )

    def _best_text(self, stratum: Stratum) -> str:
        base, top = stratum.live.leaders(
            stratum.records,
            now_s=self.now_s(),
            at_once=bool(stratum.ended) and not stratum.running,
        )
        text = best_text(base, top, stratum.study)
        return f"{stratum.live.kind}: {text}" if len(self.strata) > 1 else text
