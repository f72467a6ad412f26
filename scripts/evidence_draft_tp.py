"""Print the tables of docs/evidence/h200-two.md on draft TP and NCCL from the rows in `examples/`.

python -m scripts.evidence_draft_tp
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations

import numpy as np

from scripts.evidence import (
    EXAMPLES,
    apart,
    complete,
    fastest_step_ms,
    markdown,
    mean_step_ms,
    measurement,
    print_tables,
    speed,
)
from scripts.evidence_two import agreement, counters, name
from sweeper.records import RequestTiming, TrialRecord
from sweeper.store import Store

DRAFT_TP, NCCL, EIGHT = "h200-more/draft-tp", "h200-more/nccl", "h200-more/eight-dry"
LOADS = ("single", "shipped", "sixteen")
#: What a server with a draft alone counts (`internal_states`).
COUNTED = ("rounds", "corrected_rounds")

#: The measurements of one setting, a server's start each (NCCL: two of one start).
Starts = tuple[TrialRecord, ...]


@cache
def _by_setting(run: str) -> dict[str, Starts]:
    found: dict[str, list[TrialRecord]] = {}
    for record in complete(run):
        found.setdefault(_setting(record), []).append(record)
    return {setting: tuple(records) for setting, records in found.items()}


def _setting(record: TrialRecord) -> str:
    point = record.trial.point
    if not point or "all_reduce" not in point:
        return name(record)
    shape = [name(record).partition(",")[0]] if "steps" in point else []
    return ", ".join([*shape, str(point["draft_tp"]), str(point["all_reduce"])])


def _pairs() -> Iterator[tuple[str, Starts, Starts]]:
    """Yield each shape with its starts at a shared draft and at a draft alone, by steps."""
    found = _by_setting(DRAFT_TP)
    shapes = sorted({s.rpartition(", ")[0] for s in found if s.endswith((", shared", ", one"))})
    for shape in sorted(shapes, key=lambda s: (s.split(" / ")[1], s)):
        yield shape, found[f"{shape}, shared"], found[f"{shape}, one"]


def _requests(record: TrialRecord, load: str) -> list[RequestTiming]:
    return [r for r in record.requests if r.workload == load]


def _step_ms(starts: Starts) -> float:
    """Return the median over all requests of one stream of their mean step times."""
    return statistics.median(mean_step_ms(q) for r in starts for q in _requests(r, "single"))


def _both(values: Sequence[float]) -> str:
    return " ".join(f"{v:.4g}" for v in values)


def by_steps() -> str:
    """Return speed and step time of one stream, shared and alone, by steps."""
    rows = []
    for shape, shared, one in _pairs():
        speeds = [[speed(r, "single") for r in starts] for starts in (shared, one)]
        means = [statistics.geometric_mean(part) for part in speeds]
        rows.append(
            [
                *(shape, _both(speeds[0]), _both(speeds[1]), apart(means[1], means[0])),
                *(_step_ms(shared), _step_ms(one)),
                *(min(fastest_step_ms(r) for r in starts) for starts in (shared, one)),
            ]
        )
    plain = _by_setting(DRAFT_TP)["no speculation"]
    speeds_plain = _both([speed(r, "single") for r in plain])
    fastest = min(fastest_step_ms(r) for r in plain)
    rows.append(["no speculation", speeds_plain, "-", "-", _step_ms(plain), "-", fastest, "-"])
    head = ["setting", "shared tok/s", "alone tok/s", "change", "shared step ms", "alone"]
    return markdown([*head, "shared fastest request's", "alone"], rows)


def mean_change(logs: Sequence[float]) -> tuple[str, str]:
    """Return the mean of log ratios and its 95 % interval, by resampling them, in percent."""
    draws = np.random.default_rng(0).choice(logs, size=(10_000, len(logs))).mean(axis=1)
    told = [statistics.fmean(logs), *np.quantile(draws, (0.025, 0.975))]
    mean, low, high = (f"{math.expm1(value) * 100:+.1f} %" for value in told)
    return mean, f"{low} to {high}"


def changes() -> str:
    """Return by how much a draft alone changes the speed, over all shapes and starts."""
    rows = []
    for load in LOADS:
        logs = [
            math.log(speed(b, load) / speed(a, load))
            for _, shared, one in _pairs()
            for a, b in zip(shared, one, strict=True)
        ]
        rows.append([load, len(logs), *mean_change(logs)])
    return markdown(["load", "pairs of starts", "alone against shared", "95 %"], rows)


def accept_lengths() -> str:
    """Return the accept lengths of both, and by how much they differ."""
    rows = []
    for shape, shared, one in _pairs():
        row: list[object] = [shape]
        for load in LOADS:
            lengths = [measurement(starts[0], load).accept_length for starts in (shared, one)]
            first, second = lengths
            assert first is not None
            assert second is not None
            row += [first, second, f"{(second / first - 1) * 100:+.2f} %"]
        rows.append(row)
    head = [part for load in LOADS for part in (f"{load}, shared", "alone", "apart")]
    return markdown(["setting", *head], rows)


def equal(one: TrialRecord, other: TrialRecord, load: str) -> str:
    """Return how many answers of two launches are the same, "4 of 5"."""
    return agreement(_requests(one, load), _requests(other, load))[0]


def answers() -> str:
    """Return how many greedy answers are the same, to the last character."""
    plain = _by_setting(DRAFT_TP)["no speculation"]
    rows = [
        [
            *(shape, load, equal(shared[0], one[0], load)),
            *(equal(starts[0], starts[1], load) for starts in (shared, one)),
            *(equal(plain[0], starts[0], load) for starts in (shared, one)),
        ]
        for shape, shared, one in _pairs()
        for load in LOADS
    ]
    head = ["setting", "load", "shared and alone", "shared, both starts", "alone, both starts"]
    return markdown([*head, "shared and no speculation", "alone and no speculation"], rows)


def rounds() -> str:
    """Return the starts with a draft alone: how many, their rounds, and what was corrected."""
    rows = []
    for run in (DRAFT_TP, NCCL, EIGHT):
        told = counters(run)
        asked = [
            record
            for record in Store(EXAMPLES / run).records()
            if record.trial.point.get("draft_tp") == "one"
        ]
        last = {record.log: told[record.trial.number] for record in asked}
        rows.append(
            [
                *(run.rpartition("/")[2], len(last), len(asked)),
                sum(record.failure is not None for record in asked),
                *(sum(one[f"draft_tp_{k}"] for one in last.values()) for k in COUNTED),
            ]
        )
    head = ["run", "starts", "measurements", "failed or hung", "rounds", "corrected"]
    return markdown(head, rows)


def all_reduces() -> str:
    """Return what each all-reduce gave at 3 / 1 / 4."""
    rows = [
        [
            setting,
            *(_both([speed(r, load) for r in starts]) for load in LOADS),
            *(_step_ms(starts), min(fastest_step_ms(r) for r in starts)),
        ]
        for setting, starts in _by_setting(NCCL).items()
    ]
    head = ["draft, all-reduce", *(f"{load} tok/s" for load in LOADS)]
    return markdown([*head, "step ms", "fastest request's"], rows)


def eight() -> str:
    """Return the dry run of the study on eight GPUs."""
    rows = [
        [
            *(setting, speed(record, "single"), speed(record, "sixteen")),
            *(measurement(record, "single").accept_length, _step_ms((record,))),
            *(fastest_step_ms(record), record.phases_s["start"]),
        ]
        for setting, starts in _by_setting(EIGHT).items()
        for record in starts
    ]
    head = ["setting", "single tok/s", "sixteen tok/s", "accept length", "step ms"]
    return markdown([*head, "fastest request's", "start s"], rows)


def between_shapes() -> str:
    """Return how far the answers of shapes with a shared draft agree among themselves."""
    return between([shared[0] for _, shared, _ in _pairs()], LOADS, of="shapes")


def between(chosen: Sequence[TrialRecord], loads: Sequence[str], *, of: str) -> str:
    """Return, for each load, in how many pairs how many answers are the same."""
    rows = []
    for load in loads:
        same = sorted(
            (equal(a, b, load) for a, b in combinations(chosen, 2)),
            key=lambda told: int(told.split()[0]),
        )
        rows.append([load, len(same), same[0], same[-1]])
    return markdown(["load", f"pairs of {of}", "equal answers, least", "most"], rows)


TABLES = {
    "Shared and alone": by_steps,
    "Change": changes,
    "Accept lengths": accept_lengths,
    "Greedy answers": answers,
    "Between shapes": between_shapes,
    "Starts": rounds,
    "All-reduces": all_reduces,
    "Eight, dry": eight,
}

if __name__ == "__main__":
    print_tables(TABLES)
