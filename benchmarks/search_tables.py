"""A landscape from a table of measured settings in a Parquet file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.search_landscapes import Landscape, Truth
from sweeper.config import parse_study
from sweeper.errors import UserError
from sweeper.planning.plan import Plan
from sweeper.records import Launch, Point
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
SPEED, LENGTH = "tok_s", "accept_length"


def table_landscape(path: Path) -> Landscape:
    """Return the landscape of a table: its rows are the settings, the first row the baseline.

    Raises:
        UserError: The table lacks a column or rows.
    """
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    if len(rows) < 2 or SPEED not in rows[0]:
        raise UserError(f"{path} needs a column {SPEED!r} and two rows; the first is the baseline")
    names = [name for name in rows[0] if name not in (SPEED, LENGTH)]
    study = _study(names, rows)
    baseline = study.baseline_launch()
    settings: dict[str, tuple[Point, Launch]] = {}
    truths = {baseline.key: Truth(tok_s=float(rows[0][SPEED]), survival={})}
    for row in rows[1:]:
        point = {name: _label(row[name]) for name in names}
        launch = study.launch(point)
        settings[launch.key] = (point, launch)
        truths[launch.key] = Truth(
            tok_s=float(row[SPEED]),
            survival=_survival(launch, row),
        )
    plan = Plan(settings=settings, refused={}, merged=0, complete=True)
    return Landscape(name=path.stem, study=study, plan=plan, truths=truths)


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
        values = sorted({row[name] for row in rows[1:]}, key=str)
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
