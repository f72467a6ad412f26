"""Drawings of how a sweep went: Info -> Figure."""

from collections.abc import Sequence

import plotly.graph_objects as go

from sweeper.records import TrialState
from sweeper.report.progress import Band, DriftInfo, HoursInfo, Launched, ProgressInfo
from sweeper.report.text import hover, label, number, setting_lines
from sweeper.report.theme import (
    BASELINE,
    BLUES,
    DASHES,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    VERMILLION,
    axis_label,
    legend_below,
    marker,
    new_figure,
    nothing,
    stamp,
    thinned,
)

#: Share of all GPU-hours below which a phase is not named.
SMALL = 0.005


def draw_progress(info: ProgressInfo, *, by: str = "launch") -> go.Figure:
    """Draw the objective by "launch" or by "gpu_hours", with best so far and the baseline."""
    hours = by == "gpu_hours"
    title = axis_label(info.objective)
    figure = new_figure(
        f"{title} by {'GPU-hour' if hours else 'launch'}",
        x="GPU-hours" if hours else "launch",
        y=title,
    )
    if not info.points:
        return nothing(figure, "no server was started yet")

    def xs(points: Sequence[Launched]) -> list[float]:
        return [p.gpu_hours if hours else p.launch for p in points]

    span = xs([info.points[0], info.points[-1]])
    _band(figure, info.baseline)
    if info.reference is not None:
        _level(figure, info.reference, f"reference {info.reference:g}", GREY, "dot")
    best = [
        (x, b) for x, b in zip(xs(info.points), info.best_so_far, strict=True) if b is not None
    ]
    if best:
        figure.add_scatter(
            x=[x for x, _ in best],
            y=[b for _, b in best],
            mode="lines",
            name="best so far",
            line={"shape": "hv", "color": GREEN, "width": 2},
            hoverinfo="skip",
        )
    with_bars = len(info.points) <= 80
    before = (None, *info.best_so_far[:-1])
    risen = {
        p.number for p, b, a in zip(info.points, before, info.best_so_far, strict=True) if a != b
    }
    measured = [p for p in info.points if p.value is not None]
    for name, style, points in (
        ("setting", marker(0), [p for p in measured if p.state is TrialState.COMPLETE]),
        ("stopped early", marker(2), [p for p in measured if p.state is TrialState.PRUNED]),
        ("baseline", BASELINE, measured),
    ):
        found = [p for p in points if p.is_baseline == (name == "baseline")]
        # The points that made a new best are on the line, so they are drawn in any case.
        steps = [i for i, p in enumerate(found) if p.number in risen]
        shown = [found[i] for i in thinned(len(found), steps)]
        if shown:
            figure.add_scatter(
                x=xs(shown),
                y=[p.value for p in shown],
                mode="markers",
                name=name if len(shown) == len(found) else f"{name}, {len(shown)} of {len(found)}",
                marker=style,
                error_y=_bars(shown) if with_bars else None,
                hovertext=[_launched(p) for p in shown],
                hoverinfo="text",
            )
    failed = [p for p in info.points if p.value is None]
    failed = [failed[i] for i in thinned(len(failed))]
    if failed:
        figure.add_scatter(
            x=xs(failed),
            y=[0.03] * len(failed),
            yaxis="y2",
            mode="markers",
            name="no result",
            marker={"symbol": "x-thin-open", "color": VERMILLION, "size": 9},
            hovertext=[_launched(p) for p in failed],
            hoverinfo="text",
        )
        # Failures have no height; they stand at the foot, on an axis of their own.
        figure.update_layout(
            yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
        )
    if not measured:
        # An axis that lies over another needs something on that other one.
        figure.add_scatter(
            x=xs(failed),
            y=[info.reference or 0] * len(failed),
            opacity=0,
            showlegend=False,
            hoverinfo="skip",
        )
        figure.update_layout(yaxis={"showticklabels": info.reference is not None})
    elif not hours and len(info.points) <= 12:
        figure.update_xaxes(dtick=1)
    if span[0] == span[1]:
        figure.update_xaxes(range=[span[0] - 1, span[0] + 1])
    return stamp(figure, simulated=info.simulated)


def _launched(point: Launched) -> str:
    value = f"{number(point.value)}" if point.value is not None else f"{point.why or point.state}"
    interval = f" ({number(point.low)} to {number(point.high)})" if point.low else ""
    return hover(f"trial {point.number}: {value}{interval}", *setting_lines(point.setting))


def _bars(points: Sequence[Launched]) -> dict[str, object]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [(p.high or p.value or 0) - (p.value or 0) for p in points],
        "arrayminus": [(p.value or 0) - (p.low or p.value or 0) for p in points],
        "thickness": 1,
        "width": 3,
    }


def _band(figure: go.Figure, band: Band | None) -> None:
    if band is None:
        return
    if band.high > band.low:
        figure.add_hrect(
            y0=band.low, y1=band.high, fillcolor=ORANGE, opacity=0.16, line_width=0, layer="below"
        )
    _level(figure, band.middle, f"baseline {number(band.middle)}", ORANGE, "dash")


def _level(figure: go.Figure, y: float, text: str, colour: str, dash: str) -> None:
    # A line of two points on the whole width stretches the axis; a shape alone would not.
    figure.add_scatter(
        x=[0, 1],
        y=[y, y],
        xaxis="x9",
        mode="lines",
        name=text,
        line={"color": colour, "dash": dash, "width": 1.5},
        hoverinfo="skip",
    )
    figure.update_layout(
        xaxis9={"overlaying": "x", "range": [0, 1], "visible": False, "fixedrange": True}
    )


def draw_drift(info: DriftInfo) -> go.Figure:
    """Draw the baseline's values over the sweep, with the trend where it could be found."""
    title = axis_label(info.objective)
    figure = new_figure(f"baseline over the sweep, {title}", x="engine hours", y=title, height=320)
    if not info.values:
        return nothing(figure, "the baseline was not measured")
    slots = list(dict.fromkeys(info.slots))
    for index, slot in enumerate(slots):
        here = [i for i, s in enumerate(info.slots) if s == slot]
        figure.add_scatter(
            x=[info.hours[i] for i in here],
            y=[info.values[i] for i in here],
            mode="markers+lines" if len(here) > 1 else "markers",
            name=f"baseline, {label(slot)}" if len(slots) > 1 else "baseline",
            marker=BASELINE,
            line={"color": ORANGE, "width": 1, "dash": DASHES[index % len(DASHES)]},
            hovertext=[
                hover(f"trial {info.numbers[i]}: {number(info.values[i])}", slot) for i in here
            ],
            hoverinfo="text",
        )
    if info.trend is not None and info.trend.p_value < 0.05:
        most = max(slots, key=info.slots.count)
        there = [h for h, s in zip(info.hours, info.slots, strict=True) if s == most]
        ends = [there[0], there[-1]]
        figure.add_scatter(
            x=ends,
            y=[info.trend.level * info.trend.factor(h * 3600) for h in ends],
            mode="lines",
            name=f"trend {info.trend.share_per_hour * 100:+.2f} % an hour",
            line={"color": VERMILLION, "dash": "dot"},
            hoverinfo="skip",
        )
    middle = sorted(info.values)[len(info.values) // 2]
    spread = max(max(info.values) - middle, middle - min(info.values), 0.02 * abs(middle), 1e-9)
    # A narrow axis would make a quiet node look wild.
    figure.update_yaxes(range=[middle - 1.6 * spread, middle + 1.6 * spread])
    return stamp(figure, simulated=info.simulated)


def draw_hours(info: HoursInfo) -> go.Figure:
    """Draw GPU-hours by outcome, split by phase."""
    rows = [f"{count} {state}" for state, count in info.outcomes]
    figure = new_figure(
        "Where the GPU-hours went", x="GPU-hours", height=max(220, 150 + 52 * len(rows))
    )
    if not rows:
        return nothing(figure, "no GPU-hours were spent yet")
    starts = sum(p.startswith("start") for p in info.phases)
    # What takes hardly any time is drawn, and told by hover, but has no place in the legend.
    sums = [sum(column) for column in zip(*info.gpu_hours, strict=True)]
    large = [i for i, s in enumerate(sums) if s >= SMALL * info.total]
    shades = {i: n for n, i in enumerate(i for i in large if i < starts)}
    for index, phase in enumerate(info.phases):
        values = [row[index] for row in info.gpu_hours]
        # The stages of a start are shades of one colour, all else has its own.
        if index < starts:
            colour = BLUES[shades.get(index, 0) % len(BLUES)]
        else:
            colour = (GREEN, ORANGE, PURPLE, GREY)[(index - starts) % 4]
        figure.add_bar(
            y=rows,
            x=values,
            orientation="h",
            showlegend=index in large,
            name="start: the rest" if phase == "start" and starts > 1 else _phase(phase),
            marker={
                "color": colour,
                "line": {"color": "rgba(128,128,128,0.6)", "width": 1},
            },
            hovertext=[
                hover(f"{_phase(phase)}: {number(v, 2)} GPU-hours", f"{v / info.total:.0%} of all")
                if info.total
                else ""
                for v in values
            ],
            hoverinfo="text",
        )
    figure.update_layout(barmode="stack", bargap=0.35, legend_traceorder="normal")
    figure.update_yaxes(autorange="reversed")
    legend_below(figure, [trace.name for trace in figure.data if trace.showlegend])
    return stamp(figure, simulated=info.simulated)


def _phase(phase: str) -> str:
    return label(phase.replace(".", ": ").replace("_", " "))
