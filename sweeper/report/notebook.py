"""What the notebook needs besides the report's own functions: rows, filters, export, showing."""

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import plotly.graph_objects as go

from sweeper.errors import UserError
from sweeper.judging.standings import Standing, numbers, pareto_front, standings, with_baseline
from sweeper.objective import Objective
from sweeper.records import Scalar
from sweeper.report.draw_effects import draw_heat, draw_paired
from sweeper.report.effects import heat_info, paired_info
from sweeper.report.images import picture
from sweeper.report.run import Run
from sweeper.report.settings import DRAFT
from sweeper.space import suggest

PLOTLY_MIME = "application/vnd.plotly.v1+json"


def first_run(*folders: str) -> Path:
    """Return the first folder that holds a study.

    Raises:
        UserError: None does.
    """
    for folder in map(Path, folders):
        if (folder / "study.yaml").is_file():
            return folder
    raise UserError(f"no study in {' nor in '.join(folders)}")


@dataclass(frozen=True, slots=True)
class Shown:
    """A figure as a notebook shows it.

    It lives where Plotly is known, and is a picture elsewhere (a code host), if kaleido is
    installed to make one.
    """

    figure: go.Figure

    def _repr_mimebundle_(self, **_: object) -> dict[str, object]:
        drawn = json.loads(self.figure.to_json())
        bundle: dict[str, object] = {PLOTLY_MIME: {**drawn, "config": {"displaylogo": False}}}
        bundle["text/plain"] = f"<figure: {self.figure.layout.title.text}>"
        if (found := picture(self.figure)) is not None:
            bundle["image/png"] = base64.b64encode(found).decode()
        return bundle


class Text(str):
    """A text that a notebook shows as it is, without quotes and with its line ends."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def setting_rows(run: Run) -> list[dict[str, object]]:
    """Return one row a measured setting: parameters, objectives, acceptance, trials."""
    objectives = run.study.objectives
    found = with_baseline(run.records, objectives, run.study.slos)
    front = {s.key for s in pareto_front(found, objectives)}
    rows = []
    for standing in found:
        last = standing.records[-1].measurement(objectives[0].workload)
        row: dict[str, object] = {"setting": "baseline" if standing.is_baseline else standing.key}
        row |= dict(standing.records[0].trial.point)
        own = numbers(standing, run.records, objectives)
        row |= {o.label: v for o, v in zip(objectives, own, strict=True)}
        row["accept_length"] = last.accept_length if last else None
        row["step_time_ms"] = last.step_time_ms if last else None
        row["on_front"] = standing.key in front
        row["keeps_limits"] = not standing.broken
        row["trials"] = [r.trial.number for r in standing.records]
        rows.append(row)
    return rows


def where(run: Run, **values: Scalar) -> Run:
    """Return the run with only the trials whose point has these values, and the baseline's.

    Raises:
        UserError: A name is no parameter of the space.
    """
    names = [p.name for p in run.study.space.parameters]
    for name in values:
        if name not in names:
            raise UserError(f"{name!r} is no parameter{suggest(name, names)}")
    kept = tuple(
        r
        for r in run.records
        if not r.trial.point or all(r.trial.point.get(k) == v for k, v in values.items())
    )
    return replace(run, records=kept)


def plane(run: Run) -> tuple[Objective, Objective]:
    """Return the two numbers to plot: the study's objectives, or speed and time to first token."""
    first, *others = run.study.objectives
    if others:
        return first, others[0]
    return first, Objective(metric="ttft_p99_ms", maximize=False, workload=first.workload)


def compare_drafts(run: Run) -> list[go.Figure]:
    """Return the drafts' paired comparison, where drafts are searched, and their heat maps."""
    figures = [
        draw_paired(paired_info(run.study, run.records, parameter.name))
        for parameter in run.study.space.parameters
        if parameter.flag == DRAFT and len(parameter.values) > 1
    ]
    heat = heat_info(run.study, run.records)
    return figures + [draw_heat(heat, index) for index in range(len(heat.maps))]


def front_points(run: Run) -> list[Mapping[str, Scalar]]:
    """Return the points on the Pareto front, the best in the first objective first."""
    objectives = run.study.objectives
    front = [s for s in pareto_front(_standings(run), objectives) if not s.is_baseline]
    ranked = sorted(front, key=lambda s: -objectives[0].gain(s.values[0]))
    return [s.records[0].trial.point for s in ranked]


def trial_points(run: Run, numbers: Iterable[int]) -> list[Mapping[str, Scalar]]:
    """Return the points of trials.

    Raises:
        UserError: There is no such trial, or it is the baseline.
    """
    points = {r.trial.number: r.trial.point for r in run.records if r.trial.point}
    chosen = list(dict.fromkeys(numbers))
    missing = [n for n in chosen if n not in points]
    if missing:
        raise UserError(f"no setting was tried as trial {', '.join(map(str, missing))}")
    return [points[n] for n in chosen]


def known_yaml(points: Iterable[Mapping[str, Scalar]]) -> str:
    """Return points as the `known:` part of a space file; JSON's words are YAML's as well."""
    lines = [
        "  - {"
        + ", ".join(f"{_word(name)}: {_word(value)}" for name, value in point.items())
        + "}"
        for point in points
    ]
    return "\n".join(["known:", *lines] if lines else ["known: []"]) + "\n"


def _word(value: Scalar) -> str:
    return json.dumps(value, ensure_ascii=False)


def _standings(run: Run) -> list[Standing]:
    return standings(run.records, run.study.objectives, run.study.slos)
