"""Compare the samplers: launches and GPU-hours until a setting within 1 % of the best is launched.

    python -m benchmarks.search --quick
    python -m benchmarks.search --seeds 30 --noise 0.02 --samplers auto tpe nsga2 random
    python -m benchmarks.search --landscape measured.parquet

Every sampler goes through the same door: canonical settings, no repeats, the baseline first. A
table of measured settings is a Parquet file with a column for each parameter and one `tok_s`; its
rows are the settings, and acceptance is taken from a column `accept_length` if there is one.
"""

import argparse
import importlib.util
import math
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.search_landscapes import Landscape
from benchmarks.search_machines import all_landscapes
from benchmarks.search_report import REGRET_AT, Run, ratios, table
from benchmarks.search_tables import table_landscape
from sweeper.objective import standings
from sweeper.records import Point, Purpose, TrialRecord
from sweeper.sampler import make_sampler

LANDSCAPES = (
    "kimi-k2.5-first",
    "kimi-k2.5-later",
    "drawn",
    "nccl-accept",
    "cliffs",
    "tree",
    "nospec",
    "failing",
)
#: Best settings launched again at the end, and how often.
FINALISTS, CONFIRMATIONS = 3, 2


def sweep(
    land: Landscape, sampler: str, seed: int, *, noise: float, launches: int, workers: int
) -> Run:
    """Run one sweep of `launches` launches, `workers` of them in flight at a time."""
    study = replace(land.study, seed=seed, sampler=sampler)
    asked = make_sampler(study, land.plan)
    rng = np.random.default_rng([seed, 4242])
    queue: list[Point] = [{}, *study.known]
    taken: set[str] = set()
    flight: deque[TrialRecord] = deque()
    records: list[TrialRecord] = []
    hit: int | None = None
    stop: tuple[int, float] | None = None
    regrets: list[float] = []
    best, longest, repeats = 0.0, 0.0, 0
    for number in range(launches):
        begun = time.perf_counter()
        point = queue.pop(0) if queue else asked.ask(taken)
        longest = max(longest, time.perf_counter() - begun)
        if point is None:
            break
        purpose = Purpose.SEARCH if point else Purpose.BASELINE
        record = land.launch(number, point, noise=noise, start_s=600.0, rng=rng, purpose=purpose)
        key = record.trial.launch.key
        repeats += key in taken
        taken.add(key)
        records.append(record)
        flight.append(record)
        if len(flight) >= workers:
            asked.tell(flight.popleft())
        truth = land.truths[key]
        if key in land.plan.settings and not truth.fails:
            best = max(best, truth.tok_s)
        regrets.append(1 - best / land.best_tok_s)
        if hit is None and regrets[-1] <= 0.01:
            hit = number + 1
        if stop is None and sampler == "auto" and asked.stop_reason():
            stop = (number + 1, regrets[-1])
    return Run(
        landscape=land.name,
        sampler=sampler,
        seed=seed,
        hit=hit,
        hours={s: _hours(records[: hit or len(records)], s) for s in (600, 60)},
        regret=tuple(regrets[min(n, len(regrets)) - 1] for n in REGRET_AT),
        final=_final(land, records, noise, rng),
        stop=stop,
        ask_s=longest,
        repeats=repeats,
    )


def _hours(records: Sequence[TrialRecord], start_s: int) -> float:
    return sum(r.gpu_hours * (1 + (start_s - 600) / 600 * _start_share(r)) for r in records)


def _start_share(record: TrialRecord) -> float:
    return record.phases_s["start"] / sum(record.phases_s.values())


def _final(
    land: Landscape, records: Sequence[TrialRecord], noise: float, rng: np.random.Generator
) -> float:
    """Launch the best few again and return the regret of the one with the best median."""
    found = [s for s in standings(records, land.study.objectives) if not s.is_baseline]
    if not found:
        return 1.0
    found.sort(key=lambda s: -s.values[0])
    medians = {}
    for standing in found[:FINALISTS]:
        speeds = [r.measurements[0].output_tok_s or 0.0 for r in standing.records]
        for n in range(CONFIRMATIONS):
            again = land.launch(
                len(records) + n,
                standing.records[0].trial.point,
                noise=noise,
                start_s=600.0,
                rng=rng,
                purpose=Purpose.CONFIRM,
            )
            speeds.append(again.measurements[0].output_tok_s or 0.0)
        medians[standing.key] = statistics.median(speeds)
    chosen = max(medians, key=lambda key: medians[key])
    return 1 - land.truths[chosen].tok_s / land.best_tok_s


def _job(args: tuple[str, str, int, float, int, int]) -> list[Run]:
    name, samplers, seed, noise, launches, workers = args
    land = _landscape(name)(seed)
    return [
        sweep(land, s, seed, noise=noise, launches=launches, workers=workers)
        for s in samplers.split(",")
    ]


_made: dict[str, Callable[[int], Landscape]] = {}


def _landscape(name: str) -> Callable[[int], Landscape]:
    if name not in _made:
        if name.endswith(".parquet"):
            fixed = table_landscape(Path(name))
            _made[name] = lambda _seed: fixed
        else:
            _made.update(all_landscapes([name]))
    return _made[name]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="two landscapes, two seeds")
    parser.add_argument("--landscapes", nargs="+", default=list(LANDSCAPES), choices=LANDSCAPES)
    parser.add_argument("--landscape", type=Path, help="a Parquet table of measured settings")
    names = ["auto", "tpe", "nsga2", "random"]
    if importlib.util.find_spec("torch"):
        names.insert(2, "gp")
    parser.add_argument("--samplers", nargs="+", default=names)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--noise", type=float, default=0.02, help="relative sd of one launch")
    parser.add_argument("--launches", type=int, default=40)
    parser.add_argument("--workers", type=int, default=1, help="launches in flight")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args(argv)
    landscapes = [str(options.landscape)] if options.landscape else options.landscapes
    seeds, launches = options.seeds, options.launches
    if options.quick:
        landscapes, seeds, launches = landscapes[1:3] or landscapes, 2, 20
    jobs = [
        (name, ",".join(options.samplers), seed, options.noise, launches, options.workers)
        for name in landscapes
        for seed in range(options.first_seed, options.first_seed + seeds)
    ]
    runs: list[Run] = []
    if options.jobs > 1:
        with ProcessPoolExecutor(options.jobs) as pool:
            for found in pool.map(_job, jobs):
                runs += found
    else:
        for job in jobs:
            runs += _job(job)
    runs = [
        r for name in dict.fromkeys(r.landscape for r in runs) for r in runs if r.landscape == name
    ]
    print(
        f"{seeds} seeds, noise {100 * options.noise:g} %, {launches} launches, "
        f"{options.workers} in flight\n"
    )
    print("\n".join(table(runs, launches)))
    print()
    print("\n".join(f"- {line}" for line in ratios(runs, launches)))
    return 0 if all(math.isfinite(r.final) for r in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
