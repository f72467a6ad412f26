"""Drawings of what parameters and failures do: Info -> Figure."""

import plotly.graph_objects as go

from sweeper.report.effects import HeatInfo, HeatMap, ImportanceInfo, MarginalInfo, PairedInfo
from sweeper.report.provenance import CompareInfo
from sweeper.report.text import hover, label, labels, number, percent, setting_lines
from sweeper.report.theme import (
    BASELINE,
    BLUE,
    GREY,
    ORANGE,
    SCALE,
    SKY,
    axis_label,
    marker,
    new_figure,
    nothing,
    stamp,
    thinned,
)
from sweeper.report.trouble import FailureInfo
from sweeper.wording import measure


def draw_heat(info: HeatInfo, index: int) -> go.Figure:
    """Draw the best value by steps and draft tokens for the draft at `index`."""
    found = info.maps[index]
    title = axis_label(info.objective)
    figure = new_figure(
        f"{title} by steps and draft tokens, draft {label(found.draft)}",
        x="draft tokens",
        y="steps",
        height=150 + 46 * max(3, len(found.steps)),
    )
    texts = [[number(v) if v is not None else "" for v in row] for row in found.values]
    figure.add_heatmap(
        x=[str(t) for t in found.draft_tokens],
        y=[str(s) for s in found.steps],
        z=found.values,
        zmin=info.low,
        zmax=info.high,
        colorscale=[list(stop) for stop in SCALE],
        reversescale=not info.objective.maximize,
        text=texts,
        texttemplate="%{text}",
        hovertext=[
            [_cell(found, i, j, info) for j in range(len(found.draft_tokens))]
            for i in range(len(found.steps))
        ],
        hoverinfo="text",
        hoverongaps=False,
        xgap=2,
        ygap=2,
        colorbar={"title": {"text": measure(info.objective.metric)}, "thickness": 12},
    )
    # Numbers of a kind, not distances: each measured value is one column.
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(type="category", showgrid=False)
    return stamp(figure, simulated=info.simulated)


def _cell(found: HeatMap, i: int, j: int, info: HeatInfo) -> str:
    setting = found.settings[i][j]
    if setting is None:
        return ""
    return hover(
        f"{number(found.values[i][j])} {measure(info.objective.metric)}, "
        f"best of {found.counts[i][j]} settings",
        *setting_lines(setting),
    )


def draw_paired(info: PairedInfo) -> go.Figure:
    """Draw the gain of each choice over the reference: every pair, and their mean."""
    figure = new_figure(
        f"{label(info.parameter)}: gain over {label(str(info.reference))}, all else equal",
        x="gain, %",
        height=170 + 46 * max(1, len(info.choices)),
    )
    if not info.choices:
        return nothing(figure, "no two settings differ in this alone yet")
    choices = labels([str(c) for c in info.choices])
    names = [f"{c} ({len(p)})" for c, p in zip(choices, info.pairs, strict=True)]
    pairs = [(n, p) for n, found in zip(names, info.pairs, strict=True) for p in found]
    pairs = [pairs[i] for i in thinned(len(pairs))]
    figure.add_scatter(
        x=[(p.ratio - 1) * 100 for _, p in pairs],
        y=[n for n, _ in pairs],
        mode="markers",
        name="one pair",
        marker={"symbol": "line-ns-open", "size": 14, "color": SKY, "line": {"width": 2}},
        hovertext=[
            hover(
                f"{percent(p.ratio)}: {number(p.other)} against {number(p.reference)}",
                *setting_lines(p.others),
            )
            for _, p in pairs
        ],
        hoverinfo="text",
    )
    figure.add_scatter(
        x=[(r - 1) * 100 for r in info.ratios],
        y=names,
        mode="markers",
        name="mean of pairs",
        marker={"symbol": "diamond", "size": 12, "color": ORANGE},
        hovertext=[hover(percent(r)) for r in info.ratios],
        hoverinfo="text",
    )
    figure.add_vline(x=0, line={"color": GREY, "dash": "dash", "width": 1})
    figure.update_yaxes(autorange="reversed", type="category")
    return stamp(figure, simulated=info.simulated)


def draw_marginal(info: MarginalInfo) -> go.Figure:
    """Draw the objective of every setting by the values of one parameter, with medians."""
    title = axis_label(info.objective)
    figure = new_figure(f"{title} by {label(info.parameter)}", y=title, height=290)
    if not info.choices:
        return nothing(figure, "nothing was measured yet")
    names = labels([str(c) for c in info.choices], 24)
    points = [(n, v) for n, found in zip(names, info.values, strict=True) for v in found]
    points = [points[i] for i in thinned(len(points))]
    figure.add_scatter(
        x=[n for n, _ in points],
        y=[v for _, v in points],
        mode="markers",
        name="setting",
        marker={"symbol": "line-ew-open", "size": 16, "color": SKY, "line": {"width": 1.5}},
        hoverinfo="y",
    )
    figure.add_scatter(
        x=names,
        y=info.medians,
        mode="markers",
        name="median",
        marker={"symbol": "diamond", "size": 11, "color": ORANGE},
        hovertext=[
            hover(f"median {number(m)} of {len(v)} settings")
            for m, v in zip(info.medians, info.values, strict=True)
        ],
        hoverinfo="text",
    )
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=names)
    figure.update_layout(margin={"b": 32})
    return stamp(figure, simulated=info.simulated)


def draw_importance(info: ImportanceInfo) -> go.Figure:
    """Draw the share of the variation that each parameter explains."""
    figure = new_figure(
        "Parameter importance", x="share, %", height=150 + 34 * max(2, len(info.parameters))
    )
    if not info.parameters:
        return nothing(figure, "too few settings were measured to tell")
    figure.add_bar(
        x=[s * 100 for s in info.shares],
        y=[label(p) for p in info.parameters],
        orientation="h",
        marker={"color": BLUE},
        text=[f"{s * 100:.0f}" for s in info.shares],
        textposition="outside",
        cliponaxis=False,
        hoverinfo="skip",
    )
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_layout(bargap=0.35)
    return stamp(figure, simulated=info.simulated)


def draw_failures(info: FailureInfo) -> go.Figure:
    """Draw failures by class."""
    figure = new_figure(
        "Failures by class", x="trials", height=150 + 36 * max(2, len(info.classes))
    )
    if not info.classes:
        return nothing(figure, "nothing failed")
    figure.add_bar(
        x=[len(c.trials) for c in info.classes],
        y=[str(c.kind) for c in info.classes],
        orientation="h",
        marker={"color": ORANGE, "pattern": {"shape": "/"}},
        text=[str(len(c.trials)) for c in info.classes],
        textposition="outside",
        cliponaxis=False,
        hovertext=[hover(f"{c.fault}'s fault", c.line) for c in info.classes],
        hoverinfo="text",
    )
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_xaxes(rangemode="tozero", dtick=_whole(max(len(c.trials) for c in info.classes)))
    figure.update_layout(bargap=0.4)
    return stamp(figure, simulated=info.simulated)


def _whole(top: int) -> int | None:
    return 1 if top <= 8 else None


def draw_compare(info: CompareInfo) -> go.Figure:
    """Draw the settings of two runs against each other; above the line the second has more."""
    title = axis_label(info.objective)
    before, after = (label(n) for n in info.names)
    figure = new_figure(
        "The same settings in both runs",
        x=f"{before}: {title}",
        y=f"{after}: {title}",
        height=440,
    )
    if not info.common:
        return nothing(figure, "no setting was measured in both runs")
    shown = [info.common[i] for i in thinned(len(info.common))]
    values = [v for c in info.common for v in c.values]
    ends = [min(values) * 0.97, max(values) * 1.03]
    figure.add_scatter(
        x=ends,
        y=ends,
        mode="lines",
        name="equal",
        line={"color": GREY, "dash": "dash", "width": 1},
        hoverinfo="skip",
    )
    for name, style, chosen in (
        ("setting", marker(0, size=10), [c for c in shown if c.setting != "baseline"]),
        ("baseline", BASELINE, [c for c in shown if c.setting == "baseline"]),
    ):
        if chosen:
            figure.add_scatter(
                x=[c.values[0] for c in chosen],
                y=[c.values[1] for c in chosen],
                mode="markers",
                name=name,
                marker=style,
                hovertext=[
                    hover(
                        f"{number(c.values[0])} to {number(c.values[1])}, {percent(c.ratio)}",
                        *setting_lines(c.setting),
                    )
                    for c in chosen
                ],
                hoverinfo="text",
            )
    return stamp(figure, simulated=info.simulated)
