"""What a proposal costs: `python -m benchmarks.search_ask`.

Trials of random settings of a landscape are told to `auto` and to Optuna's TPE; then, in turn, each
is told one more, asked whether to stop, and asked for a setting. CPU milliseconds, so that other
work on the machine counts little, and the ratio of the pairs:

    replay    telling all trials to a fresh sampler and asking it once, as a resumed sweep does
    fresh     tell, stop and ask with the model fitted anew (before 40 trials: each time)
    launch    the same, over as many launches as pass between two fits
"""

import os

# As in a sweep: the matrices are small.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.search_landscapes import Landscape
from benchmarks.search_machines import all_landscapes
from sweeper.records import Point, Purpose, TrialRecord
from sweeper.sampler import Sampler, make_sampler

HEADS = ("trials", "sampler", "replay", "fresh", "launch", "by tpe's")


def trials(land: Landscape, count: int) -> list[TrialRecord]:
    """Return records of the baseline and of random settings, each once."""
    rng = np.random.default_rng(0)
    points: list[Point] = [point for point, _ in land.plan.settings.values()]
    chosen = [points[i] for i in rng.permutation(len(points))[: count - 1]]
    return [
        land.launch(
            number,
            point,
            noise=0.02,
            start_s=600.0,
            rng=rng,
            purpose=Purpose.SEARCH if point else Purpose.BASELINE,
        )
        for number, point in enumerate([{}, *chosen])
    ]


def one_launch(sampler: Sampler, record: TrialRecord, taken: set[str]) -> float:
    """Return the CPU milliseconds of what the loop asks of a sampler for one launch."""
    taken.add(record.trial.launch.key)
    begun = time.process_time()
    sampler.tell(record)
    sampler.stop_reason()
    sampler.ask(taken)
    return 1000 * (time.process_time() - begun)


def replay_ms(sampler: Sampler, records: Sequence[TrialRecord]) -> float:
    """Return the CPU milliseconds until a fresh sampler that is told `records` has answered."""
    taken = {r.trial.launch.key for r in records}
    begun = time.process_time()
    for record in records:
        sampler.tell(record)
    sampler.ask(taken)
    return 1000 * (time.process_time() - begun)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, nargs="+", default=[20, 100, 500])
    parser.add_argument("--more", type=int, default=32, help="launches after these")
    parser.add_argument("--landscape", default="kimi-k2.5-later")
    parser.add_argument("--samplers", nargs="+", default=["tpe", "auto", "random"])
    options = parser.parse_args(argv)
    land = all_landscapes([options.landscape])[options.landscape](0)
    records = trials(land, max(options.trials) + options.more)
    print(f"{len(land.plan.settings)} settings; CPU ms")
    print("".join(f"{head:>9}" for head in HEADS))
    for count in options.trials:
        told, more = records[:count], records[count : count + options.more]
        samplers = {
            name: make_sampler(replace(land.study, sampler=name), land.plan)
            for name in options.samplers
        }
        replay = {name: replay_ms(sampler, told) for name, sampler in samplers.items()}
        spent: dict[str, list[float]] = {name: [] for name in samplers}
        taken = {name: {r.trial.launch.key for r in told} for name in samplers}
        for record in more:
            for name, sampler in samplers.items():
                spent[name].append(one_launch(sampler, record, taken[name]))
        for name, took in spent.items():
            mean = statistics.mean(took)
            ratio = mean / statistics.mean(spent["tpe"]) if "tpe" in spent else float("nan")
            numbers = "".join(f"{ms:>9.0f}" for ms in (replay[name], max(took), mean))
            print(f"{count:>9}{name:>9}{numbers}{ratio:>9.2f}", flush=True)


if __name__ == "__main__":
    main()
