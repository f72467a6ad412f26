"""What the driver costs a trial: `python -m benchmarks.driver`.

Runs the loop of `sweeper.sweep` over the space of `eagle3` with an executor whose trials take no
time, so that all time is the driver's. Printed for each number of slots, in milliseconds a trial:

    wall, cpu    all of it
    choose       the sampler: asking, telling, whether to stop
    write        the rows: real files, synced
    loop         the rest: agenda, view, display, numbers published, a report each minute
    first, last  wall of the first and of the last hundred launches: the growth with the history
"""

import argparse
import cProfile
import os
import pstats
import tempfile
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sweeper.cluster import Assignment, Outcome, Status, SweepNumbers
from sweeper.config import find_space, load_study
from sweeper.live import Live
from sweeper.planning.plan import Plan, make_plan
from sweeper.records import (
    HostFacts,
    Measurement,
    Point,
    RequestTiming,
    ServerFacts,
    TrialRecord,
    TrialState,
)
from sweeper.sampler import Sampler, make_sampler
from sweeper.store import Store
from sweeper.stratum import Numbers, Stratum
from sweeper.study import SAMPLERS, Study
from sweeper.sweep import Sweep
from sweeper.terminal.display import make_display
from sweeper.terminal.interrupt import Interrupt

_CHUNKS = 250


def speed_of(assignment: Assignment) -> float:
    """Return a made-up speed, the same for the same setting."""
    key = assignment.trial.launch.key
    return 60.0 + int(key[:6], 16) / 0xFFFFFF * 40.0


def record_of(assignment: Assignment, slot: str) -> TrialRecord:
    """Return a complete record of the size that a real one has."""
    speed = speed_of(assignment)
    took = int(500 / speed * 1e9)
    requests = tuple(
        RequestTiming(
            workload="single",
            repeat=0,
            prompt_id=f"p{index}",
            prompt_kind="chat",
            sent_ns=index * took,
            first_ns=index * took + 100_000_000,
            last_ns=(index + 1) * took,
            chunk_ns=tuple(range(index * took + 100_000_000, (index + 1) * took, took // _CHUNKS)),
            prompt_tokens=100,
            output_tokens=500,
            verify_steps=250,
            accepted_histogram=(100, 80, 40, 30),
            finish="length",
            text="word " * 400,
        )
        for index in range(5)
    )
    measurement = Measurement(
        workload="single",
        requests=5,
        output_tok_s=speed,
        output_tok_s_low=speed * 0.97,
        output_tok_s_high=speed * 1.03,
        repeats_tok_s=(speed,),
        accept_length=2.0,
        step_time_ms=2000.0 / speed,
        accepted_histogram=(500, 400, 200, 150),
        accepted_by_position=(0.6, 0.3, 0.1),
    )
    return TrialRecord(
        trial=assignment.trial,
        state=TrialState.COMPLETE,
        measurements=(measurement,),
        requests=requests,
        server=ServerFacts(
            version="0.5.23", flags=assignment.trial.launch.flags, rewritten={}, simulated=True
        ),
        host=HostFacts(host="node", slot=slot, gpu_name="simulated", gpu_ids=tuple(range(8))),
        started_at="2026-01-01T00:00:00+00:00",
        phases_s={"start": 300.0, "start.load": 200.0, "measure": 60.0, "stop": 5.0},
        log=assignment.log,
    )


@dataclass
class InstantExecutor:
    """Slots whose trials have ended when they are asked for; one ends at a time."""

    slots: int
    ended_s: list[float] = field(default_factory=list)
    _busy: deque[tuple[str, Assignment]] = field(default_factory=deque)
    dashboard_url: str | None = None

    def hardware_of(self, slot: str) -> str | None:  # noqa: ARG002
        """Return the same for each."""
        return "simulated"

    def free_slots(self) -> list[str]:
        """Return the idle slots."""
        busy = {slot for slot, _ in self._busy}
        return [name for i in range(self.slots) if (name := f"slot-{i}") not in busy]

    def starting_slots(self) -> list[str]:
        """Return none."""
        return []

    def lost_slots(self) -> dict[str, str]:
        """Return none."""
        return {}

    def submit(self, slot: str, assignment: Assignment) -> None:
        """Take a trial."""
        self._busy.append((slot, assignment))

    def wait(self, timeout_s: float) -> list[Outcome]:  # noqa: ARG002
        """Return the oldest trial."""
        slot, assignment = self._busy.popleft()
        self.ended_s.append(time.perf_counter())
        return [Outcome(slot=slot, assignment=assignment, record=record_of(assignment, slot))]

    def status(self) -> dict[str, Status]:
        """Return what a busy slot would say."""
        return {slot: Status(number=a.trial.number) for slot, a in self._busy}

    def publish(self, numbers: SweepNumbers) -> None:
        """Nobody looks."""

    def cancel(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing is left."""


class TimedStore(Store):
    """A store that knows how long it wrote."""

    spent_s = 0.0

    def write(self, record: TrialRecord) -> None:
        """Write, and take the time."""
        begun = time.perf_counter()
        super().write(record)
        self.spent_s += time.perf_counter() - begun


class TimedSampler:
    """A sampler that knows how long it thought."""

    def __init__(self, inner: Sampler) -> None:
        self._inner = inner
        self.spent_s = 0.0

    def tell(self, record: TrialRecord) -> None:
        """Tell, and take the time."""
        begun = time.perf_counter()
        self._inner.tell(record)
        self.spent_s += time.perf_counter() - begun

    def ask(self, taken: Collection[str]) -> Point | None:
        """Ask, and take the time."""
        begun = time.perf_counter()
        point = self._inner.ask(taken)
        self.spent_s += time.perf_counter() - begun
        return point

    def stop_reason(self) -> str | None:
        """Ask whether to stop, take the time, and go on: the cost of a long sweep is wanted."""
        begun = time.perf_counter()
        self._inner.stop_reason()
        self.spent_s += time.perf_counter() - begun
        return None

    def merit(self, before: int) -> Mapping[str, float]:
        """Ask what is believed of settings."""
        return self._inner.merit(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Milliseconds a trial.

    Attributes:
        launches: How many there were; a sampler may find that going on is in vain.
        wall_ms: Over all launches.
        cpu_ms: The same, CPU time of the process.
        choose_ms: Wall, in the sampler.
        write_ms: Wall, in the store.
        first_ms: Wall, launches 1 to 100.
        last_ms: Wall, the last hundred.
    """

    launches: int
    wall_ms: float
    cpu_ms: float
    choose_ms: float
    write_ms: float
    first_ms: float
    last_ms: float


def measure(study: Study, plan: Plan, folder: Path, slots: int) -> Cost:
    """Run one sweep and return what its driver cost."""
    executor = InstantExecutor(slots)
    with TimedStore(folder) as store, Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        store.create()
        store.lock()
        store.keep_study(study.text)
        display = make_display(nowhere)
        sampler = TimedSampler(make_sampler(study, plan))
        live = Live(study, plan.settings)
        numbers = Numbers(store.next_number())
        stratum = Stratum(study, store, executor, plan, sampler, [], live, numbers, display.say)
        sweep = Sweep(study, store, executor, [stratum], display, Interrupt())
        begun, cpu = time.perf_counter(), time.process_time()
        sweep.run()
        wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    ends = executor.ended_s
    launches, some = len(ends), min(100, len(ends) - 1)
    return Cost(
        launches=launches,
        wall_ms=wall / launches * 1e3,
        cpu_ms=cpu / launches * 1e3,
        choose_ms=sampler.spent_s / launches * 1e3,
        write_ms=store.spent_s / launches * 1e3,
        first_ms=(ends[some] - begun) / (some + 1) * 1e3,
        last_ms=(ends[-1] - ends[-1 - some]) / some * 1e3,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--space", default="eagle3")
    parser.add_argument("--sampler", choices=SAMPLERS, help="instead of the space file's")
    parser.add_argument("--profile", action="store_true", help="say where the CPU time goes")
    arguments = parser.parse_args(argv)
    study = load_study(find_space(arguments.space)).resolved(gpus_present=False)
    study = replace(study, budget=replace(study.budget, launches=arguments.launches, hours=None))
    if arguments.sampler:
        study = replace(study, sampler=arguments.sampler)
    plan = make_plan(study)
    print(f"{len(plan.settings)} settings, sampler {study.sampler}; ms a trial")
    heads = ("slots", "launches", "wall", "cpu", "choose", "write", "loop", "first", "last")
    print("".join(f"{head:>9}" for head in heads))
    for slots in arguments.slots:
        with tempfile.TemporaryDirectory(prefix="sweeper-driver-") as folder:
            profile = cProfile.Profile(time.process_time)
            if arguments.profile:
                profile.enable()
            cost = measure(study, plan, Path(folder) / "runs" / "driver", slots)
            profile.disable()
        loop_ms = cost.wall_ms - cost.choose_ms - cost.write_ms
        shown = (cost.wall_ms, cost.cpu_ms, cost.choose_ms, cost.write_ms, loop_ms)
        figures = "".join(f"{ms:>9.2f}" for ms in (*shown, cost.first_ms, cost.last_ms))
        print(f"{slots:>9}{cost.launches:>9}{figures}", flush=True)
        if arguments.profile:
            pstats.Stats(profile).sort_stats("cumulative").print_stats(25)


if __name__ == "__main__":
    main()
