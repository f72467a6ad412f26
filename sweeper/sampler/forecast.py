"""How many launches each sampler would need: sweeps simulated on the model itself. Pure but slow.

    stored records, or none --fit--> joint samples --each one a world--> a sweep with each sampler

A world says what every setting would really do. It is drawn from the model, so a forecast flatters
the sampler that thinks in this model; `benchmarks/search.py` has landscapes that do not.
"""

import importlib.util
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sweeper.planning.plan import Plan
from sweeper.records import Measurement, Point, Purpose, Trial, TrialRecord, TrialState
from sweeper.sampler.acquire import TIE
from sweeper.sampler.belief import Belief
from sweeper.sampler.door import NEEDS, make_sampler
from sweeper.sampler.evidence import Evidence, evidence_of, targets_of
from sweeper.sampler.propose import Proposer
from sweeper.sampler.table import make_table
from sweeper.speculation import Array
from sweeper.study import Study

#: Worlds; each sampler is tried in all of them, or as many as its time allows.
WORLDS = 5
#: Samplers whose sweeps are simulated. An ask of gp takes too long for that.
SIMULATED = ("auto", "tpe", "nsga2")
#: Tokens of a simulated measurement: how well its accept length is known.
TOKENS = 2500


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What one sampler would need.

    Attributes:
        sampler: Its name.
        launches: Launches until a setting within a tie of the best was launched, the baseline
            and the known settings among them: median over the worlds. None if not simulated.
        at_least: Whether the sweeps were cut there.
        worlds: How many worlds it was tried in.
        reason: Why it was not simulated; empty if it was.
    """

    sampler: str
    launches: int | None = None
    at_least: bool = False
    worlds: int = 0
    reason: str = ""


def forecast(
    study: Study,
    plan: Plan,
    records: Sequence[TrialRecord],
    *,
    now_s: Callable[[], float],
    limit_s: float,
) -> list[Forecast]:
    """Return what each sampler would need, by the launches.

    Args:
        study: The study.
        plan: What it can launch, all of it listed.
        records: Finished trials; without any the worlds are what is believed beforehand.
        now_s: A clock, in seconds.
        limit_s: How long the sweeps of one sampler may take together; 0 simulates none.
    """
    worlds = list(_worlds(study, plan, records))
    found = [_simulated(study, plan, worlds, name, now_s, limit_s) for name in SIMULATED]
    missing = next((p for p in NEEDS["gp"] if importlib.util.find_spec(p) is None), None)
    slow = f"{missing} is not installed" if missing else "an ask takes it about a second"
    found.append(Forecast(sampler="gp", reason=slow))
    first = 1 + len(study.known)
    random = statistics.median_low(
        [first + _by_chance(int(w.good.sum()), len(w.good)) for w in worlds]
    )
    found.append(Forecast(sampler="random", launches=random, worlds=len(worlds)))
    ordered = statistics.median_low([first + 1 + int(np.argmax(w.good)) for w in worlds])
    found.append(Forecast(sampler="grid", launches=ordered, worlds=len(worlds)))
    return sorted(found, key=lambda f: math.inf if f.launches is None else f.launches)


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """What each row of the table would show: log of each target, log accept length of each load.

    `good` tells of each setting of the plan whether it is within a tie of the best one.
    """

    logs: tuple[Array, ...]
    lengths: dict[str, Array]
    noise: tuple[float, ...]
    good: np.ndarray[tuple[int], np.dtype[np.bool_]]
    row: dict[str, int]


def _worlds(study: Study, plan: Plan, records: Sequence[TrialRecord]) -> Iterator[_World]:
    targets = targets_of(study)
    proposer = Proposer(make_table(study, plan), targets)
    table = proposer.table
    evidence: list[Evidence] = [
        evidence_of(record, targets)
        for record in sorted(records, key=lambda r: r.trial.number)
        if record.trial.launch.key in table.row
    ]
    rng = np.random.default_rng([study.seed, len(evidence), 2])
    belief: Belief = proposer.model.believe(evidence, rng)
    gains, feasible = proposer.gains(belief)
    allowed = np.where(feasible, gains[0], -np.inf)[:, : table.plan_rows]
    for draw in range(WORLDS):
        if not np.isfinite(allowed[draw]).any():
            # Nothing keeps the limits there: what is looked for is the best of all.
            allowed[draw] = gains[0][draw, : table.plan_rows]
        best = allowed[draw].max()
        yield _World(
            logs=tuple(logs[draw] for logs in belief.logs),
            lengths={name: found[draw] for name, found in belief.log_lengths.items()},
            noise=belief.noise,
            good=(allowed[draw] >= best - TIE) & np.isfinite(allowed[draw]),
            row=dict(table.row),
        )


def _simulated(
    study: Study,
    plan: Plan,
    worlds: Sequence[_World],
    name: str,
    now_s: Callable[[], float],
    limit_s: float,
) -> Forecast:
    """Return the forecast of one sampler, by sweeps as far as the time allows."""
    end_s = now_s() + limit_s
    ends: list[tuple[bool, int]] = []
    for seed, world in enumerate(worlds):
        if ends and now_s() >= end_s:
            break
        ends.append(_sweep(replace(study, sampler=name, seed=seed), plan, world, now_s, end_s))
    # One that was cut would have needed more than any that was not.
    cut, launches = sorted(ends)[(len(ends) - 1) // 2]
    return Forecast(sampler=name, launches=launches, at_least=cut, worlds=len(ends))


def _sweep(
    study: Study, plan: Plan, world: _World, now_s: Callable[[], float], end_s: float
) -> tuple[bool, int]:
    """Return whether the time ended the sweep before a good setting, and its launches."""
    sampler = make_sampler(study, plan)
    rng = np.random.default_rng([study.seed, 3])
    queue: list[Point] = [{}, *(p for p in study.known if study.launch(p).key in plan.settings)]
    taken: set[str] = set()
    while now_s() < end_s:
        point = queue.pop(0) if queue else sampler.ask(taken)
        if point is None:
            break
        record = _launch(study, world, len(taken), point, rng)
        taken.add(record.trial.launch.key)
        row = world.row[record.trial.launch.key]
        if row < len(world.good) and world.good[row]:
            return False, len(taken)
        sampler.tell(record)
    return True, max(len(taken), 1)


def _launch(
    study: Study, world: _World, number: int, point: Point, rng: np.random.Generator
) -> TrialRecord:
    """Return the record of one launch in a world."""
    launch = study.launch(point) if point else study.baseline_launch()
    row = world.row[launch.key]
    shown: dict[str, dict[str, float]] = {w.name: {} for w in study.workloads}
    for target, logs, noise in zip(targets_of(study), world.logs, world.noise, strict=True):
        shown[target.workload][target.metric] = math.exp(logs[row] + rng.normal(0.0, noise))
    measurements = []
    for name, numbers in shown.items():
        log_length = float(world.lengths[name][row]) if name in world.lengths else 0.0
        if log_length > 0:
            numbers["accept_length"] = math.exp(log_length)
        measurements.append(
            replace(
                Measurement(workload=name, requests=1, output_tokens=TOKENS),
                **numbers,  # type: ignore[arg-type]
            )
        )
    return TrialRecord(
        trial=Trial(
            study=study.name,
            number=number,
            purpose=Purpose.SEARCH if point else Purpose.BASELINE,
            point=point,
            launch=launch,
        ),
        state=TrialState.COMPLETE,
        measurements=tuple(measurements),
        started_at="2026-01-01T00:00:00+00:00",
        phases_s={"start": 1.0},
        log="",
    )


def _by_chance(good: int, settings: int) -> int:
    """Return the median number of draws without replacement to the first good setting."""
    missed = 1.0
    for draw in range(settings - good + 1):
        missed *= 1 - good / (settings - draw)
        if missed <= 0.5:
            return draw + 1
    return settings
