"""The loop, and `python -m sweeper.search SPACE`.

    space file -> Study -> Plan -> Store (what is there already) -> Sampler told of it
    while the agenda has a next trial:
        submit it to a free slot; wait; write the record; tell the sampler; show it
    verdict -> best.sh, report.html

Nothing is told before it is on disk. A trial that a dying driver leaves has no row, so the next
start of the same command proposes it again.
"""

import os

# The sampler's matrices are small: threads make an ask several times slower on a busy machine.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from sweeper.cluster import (
    Assignment,
    Executor,
    InlineExecutor,
    check_results_stay,
    choose_address,
    connect,
    dashboard_line,
)
from sweeper.errors import Failure, FailureClass, Stage, StopSweep, UserError
from sweeper.judging.witness import Witness
from sweeper.live import Live
from sweeper.planning.agenda import Ledger, fitting, newest_hardware, next_trial, on_hardware
from sweeper.planning.families import ruled_out, rules
from sweeper.planning.plan import Plan, make_plan
from sweeper.planning.preflight import ask_engine
from sweeper.records import Point, Trial, TrialRecord, TrialState
from sweeper.report import write_report
from sweeper.sampler import Sampler, make_sampler
from sweeper.serving import detect
from sweeper.store import Store, newest_run, next_run
from sweeper.study import Study
from sweeper.terminal.display import Display, View, make_display, print_plan
from sweeper.terminal.interrupt import EXIT_BROKEN, EXIT_INT, EXIT_USER, Interrupt
from sweeper.terminal.options import estimate_hours, parse_options, study_of
from sweeper.terminal.results import print_results, write_results

_POLL_S = 0.5
#: Real seconds between two writings of the report while the sweep runs.
_REPORT_EVERY_S = 60.0
#: Share of the driver's time that the report may take: it grows with the rows.
_REPORT_SHARE = 0.05


@dataclass
class Sweep:
    """One run of the loop over one study.

    Attributes:
        study: The study, its engine resolved.
        store: Where records go; locked by us.
        executor: Where trials run.
        plan: The settings that may be launched.
        sampler: Told of each record after it is stored.
        display: Where people look.
        interrupt: Looked at twice a second.
        records: Finished trials that belong to the study, in order of their end.
        live: Adds up what is published.
        now_s: Real monotonic seconds.
    """

    study: Study
    store: Store
    executor: Executor
    plan: Plan
    sampler: Sampler
    display: Display
    interrupt: Interrupt
    records: list[TrialRecord]
    live: Live
    now_s: Callable[[], float] = time.monotonic
    running: list[Trial] = field(default_factory=list)
    begun_s: float = field(init=False)
    ended: str = ""
    _cancelled: bool = False
    _learned: set[str] = field(default_factory=set)
    _report_due_s: float = 0.0
    _trial_s: list[float] = field(default_factory=list)
    _submitted_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.begun_s = self.now_s()
        self._report_due_s = self.begun_s + _REPORT_EVERY_S
        for record in self.records:
            self.sampler.tell(record)
        self._next = self.store.next_number()
        self._witness = Witness(self.study, self.records, self.store.requests_of)

    def run(self) -> None:
        """Run until the budget is spent, nothing is left, or somebody interrupts.

        Raises:
            StopSweep: The installation is broken.
            UserError: The store cannot be written.
        """
        while True:
            if not self._cancelled:
                self._submit()
            if not self.running:
                return
            # Free slots have got their trials; what follows costs them no time.
            view = self.view()
            self.display.update(view)
            self._publish(view)
            self._report()
            self._collect()
            if self.interrupt.count > 1:
                return
            if self.interrupt.count == 1 and not self._cancelled:
                self._cancelled = True
                self.ended = "interrupted"
                self.display.say("stopping the running servers; again to stop at once")
                self.executor.cancel()

    def _publish(self, view: View) -> None:
        self.executor.publish(
            self.live.numbers(
                self.records,
                self.running,
                status=view.status,
                lost=len(self.executor.lost_slots()),
                stopping=self._cancelled,
                now_s=self.now_s(),
            )
        )

    def _ledger(self) -> Ledger:
        return Ledger(
            study=self.study,
            records=self.records,
            running=self.running,
            next_number=self._next,
            settings=self.plan.settings,
        )

    def _submit(self) -> None:
        for slot in self.executor.free_slots():
            reason = self.sampler.stop_reason()
            ask = _ask_nothing if reason else self.sampler.ask
            trial = next_trial(self._ledger(), ask)
            if trial is None:
                self.live.pause(self.now_s())
                self.ended = self._ledger().spent() or reason or "nothing is left to launch"
                return
            self._next += 1
            self.running.append(trial)
            self._submitted_s[trial.number] = self.now_s()
            self.executor.submit(slot, self._assignment(trial))
        self.live.note(self.now_s(), busy=len(self.running), free=len(self.executor.free_slots()))
        if not self.running and not self.executor.free_slots():
            lost = "; ".join(f"{s}: {why}" for s, why in self.executor.lost_slots().items())
            raise StopSweep(f"no slot is left ({lost})")

    def _assignment(self, trial: Trial) -> Assignment:
        simulation = self.study.engine.simulation
        return Assignment(
            trial=trial,
            workloads=self.study.workloads,
            limits=self.study.limits,
            folder=str(self.store.folder.resolve()),
            log=str(self.store.log_path(trial.number).relative_to(self.store.folder)),
            time_scale=simulation.time_scale if self.study.simulated else 1.0,
            env=tuple(simulation.environment().items()) if self.study.simulated else (),
            rival=self._witness.rival(trial),
        )

    def _collect(self) -> None:
        outcomes = self.executor.wait(_POLL_S)
        self.live.freed(self.now_s(), len(outcomes))
        for outcome in outcomes:
            trial = outcome.assignment.trial
            self.running = [t for t in self.running if t.number != trial.number]
            record = outcome.record
            if outcome.lost is not None and not self._cancelled:
                record = _lost_record(outcome.assignment, str(outcome.lost))
            if record is None:
                continue
            record = self._witness.look(record)
            self.store.write(record)
            self._trial_s.append(self.now_s() - self._submitted_s.pop(trial.number))
            record = replace(record, requests=())
            self.records.append(record)
            self.sampler.tell(record)
            self.display.finished(record, self.view())
            self._learn()

    def _learn(self) -> None:
        """Say which families of settings the last failures rule out from now on."""
        for rule in rules(self.records, self.study):
            if rule.reason not in self._learned:
                self._learned.add(rule.reason)
                count = len(ruled_out(self.plan.settings, (rule,)))
                self.display.say(f"no longer launched: {rule.reason} ({count} settings)")

    def _report(self) -> None:
        begun_s = self.now_s()
        if begun_s >= self._report_due_s:
            write_report(self.store.folder)
            took_s = self.now_s() - begun_s
            self._report_due_s = begun_s + max(_REPORT_EVERY_S, took_s / _REPORT_SHARE)

    def why_it_ended(self) -> str:
        """Return why the loop ended, and how well the slots were used."""
        share = self.live.busy_share
        return self.ended + (
            "" if share is None else f"; the slots had a trial {share:.1%} of the time"
        )

    def view(self) -> View:
        """Return what is to be shown now."""
        launches = self._ledger().launches
        left: float | None = None
        if self._trial_s:
            each = sum(self._trial_s) / len(self._trial_s)
            done = launches - len(self.running)
            left = max(self.study.budget.launches - done, 0) * each
        return View(
            study=self.study,
            records=self.records,
            running=self.running,
            status=self.executor.status() if self.running else {},
            launches=launches,
            elapsed_s=self.now_s() - self.begun_s,
            seconds_left=left,
        )


def _ask_nothing(_: Collection[str]) -> Point | None:
    return None


def _lost_record(assignment: Assignment, why: str) -> TrialRecord:
    return TrialRecord(
        trial=assignment.trial,
        state=TrialState.FAILED,
        failure=Failure(kind=FailureClass.NODE_LOST, stage=Stage.SERVING, line=why),
        started_at=datetime.now(UTC).isoformat(),
        log=assignment.log,
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = parse_options(argv)
    try:
        study = study_of(options)
        here = bool(detect().devices())
        checked = ask_engine(study, make_plan(study), gpus_present=here, say=_say)
        study, plan = checked.study, checked.plan
        if options.plan:
            print_plan(plan, study, estimate_hours(study))
            return 0
        return _sweep(options, study, plan)
    except UserError as error:
        print(f"sweeper: {error}", file=sys.stderr)
        return EXIT_USER
    except StopSweep as error:
        print(f"sweeper: stopped: {error}", file=sys.stderr)
        return EXIT_BROKEN


def _sweep(options: argparse.Namespace, study: Study, plan: Plan) -> int:
    address = choose_address(options.address, os.environ)
    if options.executor == "ray":
        check_results_stay(options.runs, os.environ)
    folder = (next_run if options.fresh else newest_run)(options.runs, study.name)
    with Store(folder) as store:
        store.create()
        store.lock()
        store.clean()
        store.keep_study(study.text)
        records, left_out = fitting(store.records(), study)
        display = make_display()
        interrupt = Interrupt()
        interrupt.install()
        executor: Executor | None = None
        try:
            for line in (*store.problems, *left_out):
                display.say(line)
            if address is None and os.environ.get("RAY_ADDRESS"):
                display.say("RAY_ADDRESS is not followed; --address joins a cluster")
            if study.simulated:
                display.say("SIMULATED: no GPU was found or asked for; all figures are made up")
            if records:
                display.say(f"going on with {len(records)} finished trials in {folder}")
            sampler = make_sampler(study, plan)
            executor = _executor(options, study, folder, address, newest_hardware(records))
            interrupt.install()  # Ray takes SIGTERM when it starts.
            if executor.dashboard_url:
                display.say(dashboard_line(executor.dashboard_url, os.environ))
            records, others = on_hardware(records, executor.hardware)
            for slot, why in executor.lost_slots().items():
                display.say(f"{slot} is not used: {why}")
            if others:
                display.say(f"{others} of the stored trials left out: measured on other hardware")
            live = Live(study, plan.settings if plan.complete else None)
            sweep = Sweep(study, store, executor, plan, sampler, display, interrupt, records, live)
            sweep.run()
        finally:
            display.close()
            if executor is not None:
                executor.close()
        verdict = write_results(store, study, sweep.records)
        print_results(store, study, sweep.records, verdict, sweep.why_it_ended())
        if interrupt.count:
            print(f"to go on: python -m sweeper.search {options.space}")
            return interrupt.status
        return 0


def _executor(
    options: argparse.Namespace,
    study: Study,
    folder: Path,
    address: str | None,
    hardware: str | None,
) -> Executor:
    if options.executor == "inline":
        gpu_ids = () if study.simulated else tuple(range(study.engine.gpus))
        return InlineExecutor(study.adapter, detect(), gpu_ids=gpu_ids)
    return connect(
        study.adapter,
        study=study.name,
        gpus=study.engine.gpus,
        simulated=study.simulated,
        address=address,
        folder=str(folder.resolve()),
        nodes=study.engine.nodes,
        slots_per_node=study.engine.slots_per_node,
        hardware=hardware,
    )


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Ray leaves threads that may hold up a normal exit.
    os._exit(status) if status >= EXIT_INT else sys.exit(status)
