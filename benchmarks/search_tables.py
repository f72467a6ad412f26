"""A landscape from a table of measured settings in a Parquet file."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq

from benchmarks.search_landscapes import Landscape, Truth
from sweeper.config import parse_study
from sweeper.errors import UserError
from sweeper.planning.plan import Plan
from sweeper.records import Launch, Measurement, Point
from sweeper.speculation import shape_of
from sweeper.study import Study

#: Column of a table -> flag that it sets; any other column is a variable of that name.
FLAGS = {
    "algorithm": "speculative-algorithm",
    "draft": "speculative-draft-model-path",
    "steps": "speculative-num-steps",
    "topk": "speculative-eagle-topk",
    "draft_tokens": "speculative-num-draft-tokens",
}
SPEEDS, LENGTH = ("tok_s", "output_tok_s"), "accept_length"
#: Columns that say what was measured or where, and set nothing.
NO_PARAMETERS = {f.name for f in fields(Measurement)} | {
    *SPEEDS,
    "run",
    "streams",
    "fastest_step_ms",
}


def table_landscape(path: Path) -> Landscape:
    """Return the landscape of a table: its rows are the settings, the first row the baseline.

    Of several workloads the first row's is taken, of several rows of a setting the mean.

    Raises:
        UserError: The table lacks a column or rows.
    """
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    speed = next((name for name in SPEEDS if rows and name in rows[0]), None)
    if len(rows) < 2 or speed is None:
        raise UserError(
            f"{path} needs a column {' or '.join(SPEEDS)} and two rows; the first is the baseline"
        )
    rows = [row for row in rows if row.get("workload") == rows[0].get("workload")]
    if "algorithm" not in rows[0] and "steps" in rows[0]:
        rows = [{**row, "algorithm": "EAGLE3" if row["steps"] else None} for row in rows]
    names = [name for name in rows[0] if name not in NO_PARAMETERS]
    base, *others = _merged(rows, names, speed)
    study = _study(names, others)
    baseline = study.baseline_launch()
    settings: dict[str, tuple[Point, Launch]] = {}
    truths = {baseline.key: Truth(tok_s=float(base[speed]), survival={})}
    for row in others:
        point = {name: _label(row[name]) for name in names}
        launch = study.launch(point)
        settings[launch.key] = (point, launch)
        truths[launch.key] = Truth(tok_s=float(row[speed]), survival=_survival(launch, row))
    plan = Plan(settings=settings, refused={}, merged=0, complete=True)
    return Landscape(name=path.stem, study=study, plan=plan, truths=truths)


def _merged(rows: list[dict[str, Any]], names: list[str], speed: str) -> list[dict[str, Any]]:
    """Return one row a setting, with the mean of its speeds and accept lengths."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(_label(row[name]) for name in names), []).append(row)
    found = []
    for group in groups.values():
        lengths = [row[LENGTH] for row in group if row.get(LENGTH)]
        means = {speed: fmean(row[speed] for row in group)}
        found.append({**group[0], **means, LENGTH: fmean(lengths) if lengths else None})
    return found


def _label(value: object) -> str:
    return "none" if value is None else str(value)


def _survival(launch: Launch, row: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    """Return a curve that falls evenly and has the row's accept length."""
    shape, length = shape_of(launch.flags), row.get(LENGTH)
    if shape is None or not length or shape.depth < 1:
        return {}
    low, high = 0.0, 1.0
    for _ in range(40):
        rate = (low + high) / 2
        short = 1 + sum(rate**i for i in range(1, shape.depth + 1)) < float(length)
        low, high = (rate, high) if short else (low, rate)
    return {"all": tuple(low**i for i in range(1, shape.depth + 1))}


def _study(names: list[str], rows: list[dict[str, Any]]) -> Study:
    lines = [
        "study: measured",
        "engine: {kind: simulated, model: /models/target, gpus: 8, flags: {}}",
        "parameters:",
    ]
    for name in names:
        values = sorted({row[name] for row in rows}, key=str)
        lines.append(f"  {name}:")
        lines.append("    choices:")
        for value in values:
            if value is None:
                sets = "{}"
            elif name in FLAGS:
                sets = f"{{flags: {{{FLAGS[name]}: {value}}}}}"
            elif name == "cuda_graph":
                sets = "{}" if str(value) == "on" else "{flags: {disable-cuda-graph: true}}"
            else:
                sets = f"{{env: {{SWEEPER_{name.upper()}: '{value}'}}}}"
            lines.append(f"      '{_label(value)}': {sets}")
    lines += ["workloads: [{name: single}]", "objectives: [{maximize: output_tok_s}]"]
    return parse_study("\n".join(lines) + "\n", "table.yaml")
