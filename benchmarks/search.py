"""Compare the samplers: launches and GPU-hours until a setting within 1 % of the best is launched.

    python -m benchmarks.search --quick
    python -m benchmarks.search --seeds 30 --until 120 --out runs.jsonl
    python -m benchmarks.search --from runs.jsonl --figure docs/images/search.svg
    python -m benchmarks.search --landscape measured.parquet

Every sampler goes through the same door: canonical settings, no repeats, the baseline first; and
each sweep ends as the product's does, with confirmations and its winner. A table of measured
settings is a Parquet file with a column for each parameter and one `tok_s`; its rows are the
settings, and acceptance is taken from a column `accept_length` if there is one.
"""

import argparse
import importlib.util
import json
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from benchmarks.search_figure import figure
from benchmarks.search_landscapes import Landscape
from benchmarks.search_machines import all_landscapes
from benchmarks.search_report import REGRET_AT, Run, ratios, table
from benchmarks.search_tables import table_landscape
from sweeper.judging.confirmation import Merit, next_confirmation
from sweeper.judging.standings import best, standings
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
#: Arm of the comparison -> sampler, where the names differ.
SAMPLER_OF = {"exhaustive": "grid"}
ARMS = ("auto", "tpe", "gp", "nsga2", "random", "exhaustive")
#: Launches after the search that confirm its best settings, as `search_spaces/eagle3.yaml` has it.
CONFIRM = 8


def sweep(
    land: Landscape,
    arm: str,
    seed: int,
    *,
    noise: float,
    launches: int,
    workers: int,
    until: int = 0,
) -> Run:
    """Run one sweep of `launches` launches, `workers` of them in flight at a time.

    Without a hit by then it goes on until there is one, up to `until` launches.
    """
    study = replace(land.study, seed=seed, sampler=SAMPLER_OF.get(arm, arm))
    asked = make_sampler(study, land.plan)
    rng = np.random.default_rng([seed, 4242])
    queue: list[Point] = [{}, *study.known]
    taken: set[str] = set()
    flight: deque[TrialRecord] = deque()
    records: list[TrialRecord] = []
    hit: int | None = None
    stop: tuple[int, float] | None = None
    regrets: list[float] = []
    asks: list[float] = []
    top, repeats = 0.0, 0
    for number in range(max(launches, until)):
        if number >= launches and hit is not None:
            break
        begun = time.process_time()
        point = queue.pop(0) if queue else asked.ask(taken)
        asks.append(time.process_time() - begun)
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
            top = max(top, truth.tok_s)
        regrets.append(1 - top / land.best_tok_s)
        if hit is None and regrets[-1] <= 0.01:
            hit = number + 1
        if stop is None and number < launches and arm == "auto" and asked.stop_reason():
            stop = (number + 1, regrets[-1])
    return Run(
        landscape=land.name,
        sampler=arm,
        seed=seed,
        hit=hit,
        hours=tuple(_hours(records[: hit or len(records)], s) for s in (600, 60)),
        ran=len(records),
        regret=tuple(regrets[min(n, launches, len(regrets)) - 1] for n in REGRET_AT),
        final=_final(land, records[:launches], noise, rng, asked.merit),
        stop=stop,
        ask_s=(sum(asks[:launches]) / len(asks[:launches]), max(asks[:launches])),
        repeats=repeats,
    )


def _hours(records: Sequence[TrialRecord], start_s: int) -> float:
    return sum(r.gpu_hours * (1 + (start_s - 600) / 600 * _start_share(r)) for r in records)


def _start_share(record: TrialRecord) -> float:
    return record.phases_s["start"] / sum(record.phases_s.values())


def _final(
    land: Landscape,
    records: list[TrialRecord],
    noise: float,
    rng: np.random.Generator,
    merit: Merit,
) -> float:
    """Confirm as a sweep does, and return the regret of its winner."""
    study = replace(land.study, budget=replace(land.study.budget, confirm=CONFIRM))
    while (chosen := next_confirmation(study, records, (), merit=merit)) is not None:
        record = land.launch(
            len(records),
            chosen[0],
            noise=noise,
            start_s=600.0,
            rng=rng,
            purpose=Purpose.CONFIRM,
        )
        records.append(record)
    winner = best(standings(records, study.objectives), study.objectives)
    return 1 - land.truths[winner.key].tok_s / land.best_tok_s if winner else 1.0


def _job(args: tuple[str, Sequence[str], int, argparse.Namespace]) -> list[Run]:
    name, arms, seed, options = args
    land = _landscape(name)(seed)
    return [
        sweep(
            land,
            arm,
            seed,
            noise=options.noise,
            launches=options.launches,
            workers=options.workers,
            until=options.until,
        )
        for arm in arms
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
    here = all(importlib.util.find_spec(package) for package in ("torch", "scipy"))
    parser.add_argument(
        "--samplers", nargs="+", default=[a for a in ARMS if a != "gp" or here], choices=ARMS
    )
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--noise", type=float, default=0.02, help="relative sd of one launch")
    parser.add_argument("--launches", type=int, default=40)
    parser.add_argument("--until", type=int, default=0, help="go on so far without a hit")
    parser.add_argument("--workers", type=int, default=1, help="launches in flight")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, help="append each sweep to this file")
    parser.add_argument("--from", dest="given", type=Path, nargs="+", help="sweeps of --out")
    parser.add_argument("--figure", type=Path, help="draw the comparison into this SVG file")
    options = parser.parse_args(argv)
    if options.quick:
        options.landscapes, options.seeds, options.launches = options.landscapes[1:3], 2, 20
    runs = read_runs(options.given) if options.given else _run(options)
    seeds = {name: sum(r.sampler == name for r in runs) for name in {r.sampler for r in runs}}
    print(
        f"noise {100 * options.noise:g} %, {options.launches} launches, {options.workers} in "
        f"flight; sweeps: {', '.join(f'{n} {seeds[n]}' for n in ARMS if n in seeds)}\n"
    )
    print("\n".join(table(runs, options.launches)))
    print()
    print("\n".join(f"- {line}" for line in ratios(runs, options.launches)))
    if options.figure:
        options.figure.write_text(figure(runs, options.launches), encoding="utf-8")
    return 0 if all(math.isfinite(r.final) for r in runs) else 1


def _run(options: argparse.Namespace) -> list[Run]:
    """Run all sweeps, seed by seed, so that what is there early covers all landscapes."""
    landscapes = [str(options.landscape)] if options.landscape else options.landscapes
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    jobs = [(name, options.samplers, seed, options) for seed in seeds for name in landscapes]
    runs: list[Run] = []
    with ProcessPoolExecutor(options.jobs) if options.jobs > 1 else nullcontext() as pool:
        for found in pool.map(_job, jobs) if pool else map(_job, jobs):
            runs += found
            if options.out:
                with options.out.open("a", encoding="utf-8") as out:
                    out.writelines(json.dumps(asdict(run)) + "\n" for run in found)
    return runs


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Return the sweeps that `--out` wrote."""
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return [Run(**json.loads(line)) for line in lines]


if __name__ == "__main__":
    sys.exit(main())
