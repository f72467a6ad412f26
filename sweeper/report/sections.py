"""The parts of the page for one run: which figures, in which order, with which words."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import plotly.graph_objects as go

from sweeper.judging.standings import Standing, standings
from sweeper.objective import Objective
from sweeper.planning.families import rules
from sweeper.report import tables
from sweeper.report.draw_effects import (
    draw_failures,
    draw_heat,
    draw_importance,
    draw_marginal,
    draw_paired,
)
from sweeper.report.draw_prompts import draw_gain, draw_positions, draw_prompts
from sweeper.report.draw_run import draw_drift, draw_hours, draw_progress
from sweeper.report.draw_tradeoffs import draw_accept, draw_pareto
from sweeper.report.effects import heat_info, importance_info, marginal_info, paired_info
from sweeper.report.progress import drift_info, hours_info, progress_info
from sweeper.report.prompts import gain_info, position_info, prompt_info
from sweeper.report.run import Run
from sweeper.report.tradeoffs import accept_info, pareto_info, top_settings
from sweeper.report.trouble import failure_info, refused_info, rewrite_info

#: Settings that are shown prompt by prompt, besides the baseline.
SHOWN = 4
#: Pairs of the study's objectives that get a plane; four objectives have so many.
PLANES = 6
#: Drafts that get a heat map.
DRAFTS = 6


MORE_THAN_TWO = (
    " With more than two objectives a setting may be on the study's front and on no plane's; the "
    "table marks the study's."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One figure on the page.

    Attributes:
        id: Its id, unique within the run.
        title: Its heading, raw text.
        note: How to read it, raw text.
        figure: The figure.
    """

    id: str
    title: str
    note: str
    figure: go.Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of the page.

    Attributes:
        id: Its id, unique within the run.
        title: Its heading, raw text.
        charts: Its figures.
        small: Figures that need less room, below them.
        html: Tables below all figures, as HTML.
    """

    id: str
    title: str
    charts: tuple[Chart, ...] = ()
    small: tuple[Chart, ...] = ()
    html: str = ""


def sections(run: Run) -> list[Section]:
    """Return the page's parts, in order."""
    return [
        Section(id="progress", title="Progress", charts=tuple(_progress(run))),
        Section(
            id="best",
            title="The best settings",
            charts=tuple(_best(run)),
            html=tables.settings_table(run),
        ),
        Section(id="tradeoffs", title="Trade-offs", charts=tuple(_tradeoffs(run))),
        Section(
            id="parameters",
            title="What each parameter does",
            charts=tuple(_parameters(run)),
            small=tuple(_marginals(run)),
        ),
        Section(id="acceptance", title="Acceptance", charts=tuple(_acceptance(run))),
        Section(id="node", title="The node and the hours", charts=tuple(_node(run))),
        _trouble(run),
        Section(id="provenance", title="Provenance", html=tables.provenance_table(run)),
    ]


def _chart(id_: str, figure: go.Figure, note: str) -> Chart:
    return Chart(id=id_, title=tables.plain(figure.layout.title.text), note=note, figure=figure)


def _progress(run: Run) -> Iterator[Chart]:
    for index, objective in enumerate(run.study.objectives):
        info = progress_info(run.study, run.records, objective)
        yield _chart(
            f"by-launch-{index}",
            draw_progress(info),
            "Each point is one server start, with the 95 % interval of its repeats. The band is "
            "what the baseline showed over all of its launches.",
        )
        if index == 0:
            yield _chart(
                "by-gpu-hour",
                draw_progress(info, by="gpu_hours"),
                "The same by what it cost: a launch stands where its GPU-hours end.",
            )


def _best(run: Run) -> Iterator[Chart]:
    workload = run.study.objectives[0].workload or run.study.workloads[0].name
    chosen = _shown(run)
    yield _chart(
        "by-prompt",
        draw_prompts(prompt_info(chosen, workload, run.requests)),
        "One stream's output tokens by its time from sending to the last token. Marks are "
        "medians over repeats, whiskers the range.",
    )
    winner, base = run.verdict.winner, run.verdict.baseline
    if winner is not None and base is not None:
        note = "The best setting by the baseline for the same prompt."
        overall = None
        if "output_tok_s" in run.study.objectives[0].metric:
            # What is drawn is speed, so the interval of another number has no place in it.
            overall = run.verdict.ratio
            note += (
                " The shade is the verdict's interval for the gain over all prompts, with what "
                "differs between launches; it does not tell how prompts differ. If it touches "
                "zero, the gain may be chance."
            )
        yield _chart(
            "gain-by-prompt",
            draw_gain(gain_info(winner, base, workload, run.requests, overall)),
            note,
        )


def _shown(run: Run) -> list[Standing]:
    winner = run.verdict.winner
    return top_settings(run.study, run.records, SHOWN, winner.key if winner else None)


def _tradeoffs(run: Run) -> Iterator[Chart]:
    study = run.study
    for index, (x, y) in enumerate(_planes(run)):
        info = pareto_info(study, run.records, x, y)
        yield _chart(
            f"pareto-{index}",
            draw_pareto(info),
            "Settings on the front are beaten by no other in both numbers; hover shows the "
            "setting. Dashed red lines are the study's limits."
            + (MORE_THAN_TWO if len(study.objectives) > 2 else ""),
        )
    yield _chart(
        "accept",
        draw_accept(accept_info(study, run.records)),
        "Speed while decoding is accept length by step time, so all points of a dotted line are "
        "equally fast (tok/s at its end). Without speculation the accept length is 1.",
    )


def _planes(run: Run) -> list[tuple[Objective, Objective]]:
    """Return pairs of objectives: the study's own, then two that people ask for by workload."""
    study = run.study
    planes = list(itertools.islice(itertools.combinations(study.objectives, 2), PLANES))
    for workload in study.workloads[:3]:
        speed = Objective(metric="output_tok_s", workload=workload.name)
        first = Objective(metric="ttft_p99_ms", maximize=False, workload=workload.name)
        planes.append((speed, first))
        if workload.concurrency != 1:
            planes.append(
                (
                    Objective(metric="output_tok_s_per_user", workload=workload.name),
                    Objective(metric="output_tok_s_per_gpu", workload=workload.name),
                )
            )
    found = list(dict.fromkeys(planes))
    return [p for p in found if p in found[:1] or standings(run.records, p)]


def _parameters(run: Run) -> Iterator[Chart]:
    study, records = run.study, run.records
    heat = heat_info(study, records)
    for index in range(min(len(heat.maps), DRAFTS)):
        yield _chart(
            f"heat-{index}",
            draw_heat(heat, index),
            "The best setting of each cell; empty cells were not measured.",
        )
    yield _chart(
        "importance",
        draw_importance(importance_info(study, records, run.importances)),
        "The share of the variation that each parameter explains by itself, less what chance alone "
        "would give.",
    )
    names = [p.name for p in study.space.parameters if len(p.values) > 1]
    for name in names:
        paired = paired_info(study, records, name)
        if paired.choices:
            yield _chart(
                f"paired-{names.index(name)}",
                draw_paired(paired),
                "Each stroke is two settings that differ in this alone; right of zero is better. "
                "In brackets, the number of pairs.",
            )


def _marginals(run: Run) -> Iterator[Chart]:
    note = (
        "Every measured setting, whatever its other values were. A search does not try all "
        "values equally often, so pairs of settings tell more."
    )
    for index, parameter in enumerate(run.study.space.parameters):
        info = marginal_info(run.study, run.records, parameter.name)
        if len(info.choices) > 1:
            yield _chart(f"marginal-{index}", draw_marginal(info), note)
            note = ""


def _acceptance(run: Run) -> Iterator[Chart]:
    workload = run.study.objectives[0].workload or run.study.workloads[0].name
    chosen = _shown(run)
    info = position_info(chosen, workload, run.requests)
    yield _chart(
        "positions",
        draw_positions(info),
        "Share of the verify steps in which this many draft tokens or more were accepted.",
    )
    if info.kinds:
        yield _chart(
            "kinds",
            draw_positions(info, by="kind"),
            f"By kind of prompt, for {info.kind_setting}.",
        )


def _node(run: Run) -> Iterator[Chart]:
    drift = drift_info(run.study, run.records)
    yield _chart(
        "drift",
        draw_drift(drift),
        "The same setting again and again: what moves here is the node, not the setting."
        if len(drift.values) > 1
        else "Launched once, the baseline cannot show whether the node drifts.",
    )
    yield _chart(
        "hours",
        draw_hours(hours_info(run.records)),
        "By how trials ended. The start is split by stage where the server's log tells it.",
    )


def _trouble(run: Run) -> Section:
    failures = failure_info(run.records)
    charts: tuple[Chart, ...] = ()
    if failures.classes:
        charts = (
            _chart("failures", draw_failures(failures), "The table below has lines and remedies."),
        )
    html = tables.failure_table(failures) + tables.rewrite_table(rewrite_info(run.records))
    if run.plan is not None:
        learned = rules(run.records, run.study)
        html += tables.refused_table(refused_info(run.plan, run.records, learned))
    html += tables.problem_list((*run.problems, *run.unread))
    return Section(id="trouble", title="Failed, refused and rewritten", charts=charts, html=html)
