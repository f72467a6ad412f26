"""Drawings of what each prompt shows: Info -> Figure."""

import statistics
from collections.abc import Sequence
from html import unescape

import plotly.graph_objects as go

from sweeper.report.prompts import Acceptance, GainInfo, PositionInfo, PromptInfo
from sweeper.report.text import hover, label, labels, legend, number, percent, setting_lines
from sweeper.report.theme import (
    BASELINE,
    GREY,
    ORANGE,
    SKY,
    legend_below,
    line,
    marker,
    new_figure,
    nothing,
    stamp,
)

#: Prompts drawn; a set may hold hundreds.
PROMPTS = 40


def draw_prompts(info: PromptInfo) -> go.Figure:
    """Draw each setting's speed by prompt: the median, and the range over repeats."""
    figure = new_figure(
        f"tok/s by prompt, {label(info.workload)}",
        y="tok/s of one stream",
        height=380,
    )
    if not info.settings:
        return nothing(figure, "no request ended well yet")
    names = labels([p for p, _ in info.prompts[:PROMPTS]], 24)
    for index, row in enumerate(info.settings):
        points = [
            (n, statistics.median(s), max(s), min(s))
            for n, s in zip(names, row.speeds[:PROMPTS], strict=True)
            if s
        ]
        # Markers of one prompt stand side by side, so that ranges do not hide each other.
        figure.add_scatter(
            x=[n for n, _, _, _ in points],
            y=[m for _, m, _, _ in points],
            offsetgroup=str(index),
            mode="markers",
            name=legend(row.setting),
            marker=BASELINE if row.is_baseline else marker(index),
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [high - m for _, m, high, _ in points],
                "arrayminus": [m - low for _, m, _, low in points],
                "thickness": 1,
                "width": 3,
            },
            hovertext=[
                hover(
                    f"{unescape(n)}: {number(m)} ({number(low)} to {number(high)})",
                    *setting_lines(row.setting),
                )
                for n, m, high, low in points
            ],
            hoverinfo="text",
        )
    ends = [v for row in info.settings for s in row.speeds[:PROMPTS] for v in s]
    if ends:
        figure.update_yaxes(range=[min(ends) * 0.95, max(ends) * 1.05])
    figure.update_layout(scattermode="group", scattergap=0.5)
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=names)
    legend_below(figure, [legend(row.setting) for row in info.settings])
    return stamp(figure, simulated=info.simulated)


def draw_gain(info: GainInfo) -> go.Figure:
    """Draw the gain over the baseline prompt by prompt, and over all with its interval."""
    prompts = labels([p for p, _ in info.prompts], 24)
    names = [f"{p} ({label(k, 16)})" for p, (_, k) in zip(prompts, info.prompts, strict=True)]
    figure = new_figure(
        "Gain over the baseline, prompt by prompt",
        x="gain, %",
        height=170 + 26 * max(3, min(len(names), PROMPTS)),
    )
    if not names:
        return nothing(figure, "no prompt has both")
    order = sorted(range(len(names)), key=lambda i: info.ratios[i])
    kept = order if len(order) <= PROMPTS else order[: PROMPTS // 2] + order[-PROMPTS // 2 :]
    figure.add_scatter(
        x=[(info.ratios[i] - 1) * 100 for i in kept],
        y=[names[i] for i in kept],
        mode="markers",
        name="one prompt",
        marker={"color": SKY, "symbol": "circle", "size": 10},
        hovertext=[hover(f"{unescape(names[i])}: {percent(info.ratios[i])}") for i in kept],
        hoverinfo="text",
    )
    figure.add_vline(x=0, line={"color": GREY, "dash": "dash", "width": 1})
    if info.overall is not None:
        low, high = ((v - 1) * 100 for v in (info.overall.low, info.overall.high))
        figure.add_vrect(x0=low, x1=high, fillcolor=ORANGE, opacity=0.2, line_width=0)
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=f"over all, 95 % interval {low:+.1f} to {high:+.1f} %",
            marker={"symbol": "square", "color": ORANGE, "opacity": 0.4, "size": 12},
        )
    figure.update_yaxes(type="category")
    return stamp(figure, simulated=info.simulated)


def draw_positions(info: PositionInfo, *, by: str = "setting") -> go.Figure:
    """Draw the share of steps that accept each draft position, by "setting" or by "kind"."""
    rows: Sequence[Acceptance] = info.settings if by == "setting" else info.kinds
    figure = new_figure(
        f"Acceptance by position and {by}",
        x="draft position",
        y="accepted, % of steps",
        height=380,
    )
    if not rows:
        return nothing(figure, "no request tells what was accepted")
    for index, row in enumerate(rows):
        positions = list(range(1, len(row.rates) + 1))
        figure.add_scatter(
            x=positions,
            y=[r * 100 for r in row.rates],
            mode="lines+markers",
            name=legend(row.name),
            marker=marker(index),
            line=line(index),
            hovertext=[
                hover(f"position {j}: {r:.0%} of {row.steps:,} steps", *setting_lines(row.name))
                for j, r in zip(positions, row.rates, strict=True)
            ],
            hoverinfo="text",
        )
    figure.update_xaxes(dtick=1)
    figure.update_yaxes(rangemode="tozero")
    if by == "setting":
        legend_below(figure, [legend(row.name) for row in rows])
    return stamp(figure, simulated=info.simulated)
