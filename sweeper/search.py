"""`python -m sweeper.search SPACE`: what a sweep is made of, and what it leaves.

space file -> Study -> Plan -> Store (what is there already)
slots -> a stratum for each kind of hardware, its sampler told of the kind's rows
the loop (`sweep.py`)
verdicts -> best.sh, report.html
"""

import os
import signal

if __name__ == "__main__":
    # While modules load there is nothing to end: Ctrl-C ends the command without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
# The sampler's matrices are small: threads make an ask several times slower on a busy machine.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sweeper.cluster import (
    Executor,
    InlineExecutor,
    OnHardware,
    check_results_stay,
    choose_address,
    connect,
    dashboard_line,
)
from sweeper.errors import StopSweep, UserError
from sweeper.live import Live
from sweeper.planning.agenda import fitting
from sweeper.planning.plan import Plan, make_plan
from sweeper.planning.preflight import ask_engine
from sweeper.planning.strata import divide, hardware_of, on_hardware
from sweeper.records import TrialRecord
from sweeper.sampler import make_sampler
from sweeper.serving import Gpus, detect, first_visible, unseen
from sweeper.store import Store, newest_run, next_run
from sweeper.stratum import Numbers, Stratum
from sweeper.study import Study
from sweeper.sweep import Sweep
from sweeper.terminal.display import make_display
from sweeper.terminal.interrupt import EXIT_BROKEN, EXIT_INT, EXIT_USER, Interrupt
from sweeper.terminal.options import estimate_hours, parse_options, study_of
from sweeper.terminal.outlook import print_outlook, print_plan
from sweeper.terminal.reader import outlive_reader
from sweeper.terminal.results import print_results, write_results


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = parse_options(argv)
    try:
        gpus = detect()
        here = bool(gpus.devices())
        study = study_of(options, gpus_here=here, unseen=None if here else unseen())
        checked = ask_engine(study, make_plan(study), gpus_present=here, say=_say)
        study, plan = checked.study, checked.plan
        if options.plan:
            print_plan(plan, study, estimate_hours(study))
            print_outlook(options, study, plan)
            return 0
        return _sweep(options, study, plan, gpus)
    except UserError as error:
        print(f"sweeper: {error}", file=sys.stderr)
        return EXIT_USER
    except StopSweep as error:
        print(f"sweeper: stopped: {error}", file=sys.stderr)
        return EXIT_BROKEN
    except KeyboardInterrupt:
        # No server was started yet: from then on a signal only raises a wish (`Interrupt`).
        return EXIT_INT


def _sweep(options: argparse.Namespace, study: Study, plan: Plan, gpus: Gpus) -> int:
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
            try:
                executor = _executor(options, study, folder, address, gpus, display.say, interrupt)
            except UserError as error:
                if not interrupt.count:
                    raise
                display.say(str(error))
                return interrupt.status
            if executor.dashboard_url:
                display.say(dashboard_line(executor.dashboard_url, os.environ))
            for slot, why in executor.lost_slots().items():
                display.say(f"{slot} is not used: {why}")
            strata = list(_strata(study, plan, store, executor, records, display.say))
            sweep = Sweep(study, store, executor, strata, display, interrupt)
            stopped = _run(sweep)
        finally:
            display.close()
            if executor is not None:
                executor.close()
        results = {s.live.kind: (s.study, s.records, sweep.why_it_ended(s)) for s in strata}
        print_results(store, results, write_results(store, results))
        if stopped is not None:
            raise stopped
        if interrupt.count:
            print(f"to go on: {options.again}")
            return interrupt.status
        return 0


def _run(sweep: Sweep) -> StopSweep | None:
    """Run a sweep; return why it cannot go on: what it measured before is a result all the same."""
    try:
        sweep.run()
    except StopSweep as error:
        return error
    return None


def _strata(
    study: Study,
    plan: Plan,
    store: Store,
    executor: Executor,
    records: Sequence[TrialRecord],
    say: Callable[[str], None],
) -> Iterator[Stratum]:
    """Yield the search on each kind of hardware that there are slots of."""
    slots = Counter(map(executor.hardware_of, executor.free_slots()))
    parts = divide(study, slots)
    for kind in slots.keys() - parts.keys():
        say(f"{kind} is not searched: too small a part of the launches; see --hardware")
    if len(parts) > 1:
        each = (f"{own.budget.launches} on {slots[k]} x {k}" for k, own in parts.items())
        say(f"unlike hardware is searched and judged by itself, launches: {', '.join(each)}")
    others = [r for r in records if parts.keys().isdisjoint({hardware_of(r), None})]
    others = [r for r in others if hardware_of(r) is not None]
    if others:
        say(f"{len(others)} of the stored trials left out: measured on other hardware")
    numbers = Numbers(store.next_number())
    for kind, own in parts.items():
        yield Stratum(
            study=own,
            store=store,
            executor=OnHardware(executor, kind) if len(slots) > 1 else executor,
            plan=plan,
            sampler=make_sampler(own, plan),
            records=on_hardware(records, kind),
            live=Live(own, plan.settings if plan.complete else None, kind or ""),
            numbers=numbers,
            say=say,
        )


def _executor(
    options: argparse.Namespace,
    study: Study,
    folder: Path,
    address: str | None,
    gpus: Gpus,
    say: Callable[[str], None],
    interrupt: Interrupt,
) -> Executor:
    if options.executor == "inline":
        count, visible = study.engine.gpus, os.environ.get("CUDA_VISIBLE_DEVICES")
        gpu_ids = () if study.simulated else first_visible(gpus, count, visible)
        return InlineExecutor(study.adapter, gpus, gpu_ids=gpu_ids)
    return connect(
        study.adapter,
        study=study.name,
        gpus=study.engine.gpus,
        simulated=study.simulated,
        address=address,
        folder=str(folder.resolve()),
        nodes=study.engine.nodes,
        slots_per_node=study.engine.slots_per_node,
        hardware=options.hardware,
        say=say,
        stopped=lambda: interrupt.count > 0,
    )


if __name__ == "__main__":
    outlive_reader()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    status = main()
    sys.stdout.flush()
    # Ray leaves threads that may hold up a normal exit.
    os._exit(status) if status >= EXIT_INT else sys.exit(status)
