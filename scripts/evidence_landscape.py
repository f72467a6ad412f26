"""Print the tables of docs/evidence/h200.md that are made from all settings of study A.

    python -m scripts.evidence_landscape                             the tables, as Markdown
    python -m scripts.evidence_landscape --landscape FILE.parquet    a row a setting and load

Nothing here is measured; each number is made from what the runs have stored.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scripts.evidence import (
    EXAMPLES,
    apart,
    complete,
    fastest_step_ms,
    markdown,
    measurement,
    name,
    print_tables,
    slowest_step_ms,
    speed,
)
from sweeper.engines.simulated.calibrations import SMALL
from sweeper.engines.simulated.cost import Setting, accept_length, step_ms
from sweeper.records import Point, TrialRecord
from sweeper.store import Store

RUN = "h200-more/one-side"
#: Runs in which some of the same settings were measured, each server alone on its GPU.
OTHERS = ("h200-one", "h200-more/trees")


@cache
def measured() -> tuple[TrialRecord, ...]:
    """Return the measured trials of the run."""
    return tuple(complete(RUN))


def graphs(record: TrialRecord) -> str:
    """Tell whether CUDA graphs were used."""
    return str(record.trial.point.get("cuda_graph", "on"))


def _speculating() -> list[TrialRecord]:
    return [r for r in measured() if r.trial.point and graphs(r) == "on"]


def settings() -> str:
    """Return all settings, the fastest for one stream first."""
    rows = []
    for record in sorted(measured(), key=lambda r: -speed(r)):
        one = measurement(record, "single")
        others = [record.measurement(load) for load in ("four", "sixteen")]
        rows.append(
            [
                *(name(record), graphs(record), speed(record)),
                f"{one.output_tok_s_low:.0f} to {one.output_tok_s_high:.0f}",
                *(m.output_tok_s if m else None for m in others),
                *(one.accept_length, one.step_time_ms),
                *(fastest_step_ms(record), slowest_step_ms(record)),
                (one.accept_length or 1.0) / fastest_step_ms(record) * 1000,
            ]
        )
    head = ["setting", "graphs", "one stream tok/s", "95 %", "4 streams", "16 streams"]
    head += ["accept length", "mean step ms", "fastest request's", "slowest's"]
    return markdown([*head, "tok/s at the fastest's"], rows)


def refused() -> str:
    """Return the settings that SGLang died of."""
    rows = [
        [name(r), r.failure.kind, r.failure.stage, r.failure.line.partition("; left: ")[0]]
        for r in Store(EXAMPLES / RUN).records()
        if r.failure
    ]
    return markdown(["setting", "class", "stage", "line"], rows)


def again() -> str:
    """Return what was measured twice: alone on a GPU, and here."""
    here = {name(r): r for r in _speculating()}
    rows = []
    for record in (r for folder in OTHERS for r in complete(folder)):
        other = here.get(name(record))
        if other is None:
            continue
        alone_tok_s, here_tok_s = speed(record), speed(other)
        alone_ms, here_ms = fastest_step_ms(record), fastest_step_ms(other)
        rows.append(
            [
                *(name(record), alone_tok_s, here_tok_s, apart(here_tok_s, alone_tok_s)),
                *(alone_ms, here_ms, apart(here_ms, alone_ms)),
                *(
                    measurement(record, "single").accept_length,
                    measurement(other, "single").accept_length,
                ),
            ]
        )
    head = ["setting", "alone tok/s", "here tok/s", "apart", "alone fastest step ms", "here"]
    return markdown([*head, "apart", "alone accept length", "here"], rows)


def _setting(point: Point) -> Setting:
    return Setting(
        draft="ours",
        steps=int(point["steps"]),
        topk=int(point["topk"]),
        draft_tokens=int(point["draft_tokens"]),
    )


#: Terms of the cost model's step of one stream (`sweeper/engines/simulated/cost.py`), in ms.
TERMS = ("overhead_ms", "draft_ms", "token_ms", "tree_ms", "draft_token_ms")


def _terms(point: Point) -> list[float]:
    steps, topk = int(point["steps"]), int(point["topk"])
    tokens = int(point["draft_tokens"]) - 1
    return [1.0, steps, tokens, float(topk > 1), steps * (topk - 1)]


def _plain_ms() -> float:
    return min(fastest_step_ms(r) for r in measured() if not r.trial.point)


def _fit() -> np.ndarray:
    """Fit the terms on every second setting, in the order in which they were measured."""
    records = _speculating()[::2]
    seen = np.array([fastest_step_ms(r) for r in records]) - _plain_ms()
    found, *_ = np.linalg.lstsq(np.array([_terms(r.trial.point) for r in records]), seen)
    return np.asarray(found)


def cost_model() -> str:
    """Return the cost model fitted on half of the settings, and its error on each."""
    found, plain = _fit(), _plain_ms()
    rows = []
    for index, record in enumerate(_speculating()):
        point, seen = record.trial.point, fastest_step_ms(record)
        told = plain + float(np.dot(found, _terms(point)))
        small = step_ms(SMALL, _setting(point), 1)
        rows.append(
            [
                *(name(record), seen, told, apart(told, seen)),
                "held out" if index % 2 else "fitted",
                *(apart(small, seen), measurement(record, "single").accept_length),
                accept_length(SMALL, _setting(point), "chat"),
            ]
        )
    head = ["setting", "step ms", "fit ms", "error", "used", "small-1gpu's error"]
    return markdown([*head, "accept length", "small-1gpu (chat)"], rows)


def fit_summary() -> str:
    """Return the terms of the fit beside the calibration's, and the errors of both halves."""
    found, plain = _fit(), _plain_ms()
    errors = [
        abs((plain + float(np.dot(found, _terms(r.trial.point)))) / fastest_step_ms(r) - 1) * 100
        for r in _speculating()
    ]
    rows = [
        [label, f"{statistics.fmean(part):.1f} %", f"{max(part):.1f} %"]
        for label, part in (("fitted", errors[::2]), ("held out", errors[1::2]))
    ]
    terms = [
        [label, float(value), getattr(SMALL, label)]
        for label, value in zip(TERMS, found, strict=True)
    ]
    return (
        markdown(["half", "mean error", "largest"], rows)
        + "\n\n"
        + markdown(["term", "fit", "small-1gpu"], [["base_ms", plain, SMALL.base_ms], *terms])
    )


def without_graphs() -> str:
    """Return what CUDA graphs are worth, and the calibration's step without them."""
    pairs: dict[str, dict[str, TrialRecord]] = {}
    for record in measured():
        pairs.setdefault(name(record), {})[graphs(record)] = record
    rows = []
    for label, pair in pairs.items():
        if len(pair) < 2 or "steps" not in pair["off"].trial.point:
            continue
        on, off = fastest_step_ms(pair["on"]), fastest_step_ms(pair["off"])
        setting = Setting(
            draft="ours", steps=_setting(pair["off"].trial.point).steps, graphs=False,
            draft_tokens=_setting(pair["off"].trial.point).draft_tokens,
        )  # fmt: skip
        rows.append([label, on, off, off / on, apart(step_ms(SMALL, setting, 1), off)])
    return markdown(["setting", "step ms", "without graphs", "times", "small-1gpu's error"], rows)


def beside_auto() -> str:
    """Return the launches of the sweep in their order, beside the exhaustive run."""
    here = {name(r): r for r in _speculating()}
    best = max(speed(r) for r in here.values())
    rows, seconds = [], 0.0
    for record in complete("h200-one"):
        seconds += sum(v for k, v in record.phases_s.items() if "." not in k)
        other = here.get(name(record))
        found = speed(other) if other else None
        rows.append(
            [
                *(record.trial.number + 1, record.trial.purpose, name(record)),
                *(speed(record), found),
                None if found is None else apart(found, best),
                seconds / 60,
            ]
        )
    head = ["launch", "why", "setting", "tok/s in the sweep", "in the exhaustive run"]
    return markdown([*head, "from its best", "GPU-minutes so far"], rows)


def side_starts() -> str:
    """Return how long servers took that were started together."""
    batches: dict[int, list[TrialRecord]] = {}
    records = Store(EXAMPLES / RUN).records()
    for record in records:
        if not record.trial.point:
            batches[record.trial.number] = []
        batches[max(batches)].append(record)
    rows = []
    for batch in batches.values():
        times = [r.phases_s["start"] for r in batch if r.phases_s]
        parts = [
            [r.phases_s.get(f"start.{key}", 0.0) for r in batch if r.phases_s]
            for key in ("args", "import", "graph_capture")
        ]
        rows.append(
            [len(batch), min(times), max(times), *(statistics.median(part) for part in parts)]
        )
    head = ["servers at once", "start s, first", "last", "arguments s", "imports s", "graphs s"]
    return markdown(head, rows)


def landscape() -> pa.Table:
    """Return one row for each setting and load: the landscape that was measured."""
    rows = []
    for record in measured():
        point = record.trial.point
        for m in record.measurements:
            row = {key: point.get(key) for key in ("steps", "topk", "draft_tokens", "cuda_graph")}
            row |= {"workload": m.workload, "streams": m.concurrency}
            row |= {"output_tok_s": m.output_tok_s, "accept_length": m.accept_length}
            row |= {"output_tok_s_low": m.output_tok_s_low}
            row |= {"output_tok_s_high": m.output_tok_s_high}
            row |= {"step_time_ms": m.step_time_ms}
            row |= {"fastest_step_ms": None}
            if m.workload == "single":
                row["fastest_step_ms"] = fastest_step_ms(record)
            rows.append(row)
    return pa.Table.from_pylist(rows)


TABLES = {
    "Study A": settings,
    "What SGLang died of": refused,
    "Measured twice": again,
    "Auto beside exhaustive": beside_auto,
    "The cost model": cost_model,
    "Its fit": fit_summary,
    "Without graphs": without_graphs,
    "Started together": side_starts,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.evidence_landscape")
    parser.add_argument("--landscape", type=Path, help="write the landscape there instead")
    options = parser.parse_args(argv)
    if options.landscape is not None:
        pq.write_table(landscape(), options.landscape, compression="zstd")
        return 0
    print_tables(TABLES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
