"""Drawings of one number against another: Info -> Figure."""

import plotly.graph_objects as go

from sweeper.report.text import hover, labels, number, setting_lines
from sweeper.report.theme import (
    BASELINE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    axis_label,
    marker,
    new_figure,
    nothing,
    stamp,
    thinned,
)
from sweeper.report.tradeoffs import AcceptInfo, Candidate, ParetoInfo, WhatIfInfo
from sweeper.wording import measure


def draw_pareto(info: ParetoInfo) -> go.Figure:
    """Draw settings in the plane of two objectives: front, knee, dominated ones, limits."""
    x, y = axis_label(info.x), axis_label(info.y)
    figure = new_figure(f"{y} against {x}", x=x, y=y, height=460)
    if not info.candidates:
        return nothing(figure, "no setting has both numbers yet")
    front = [info.candidates[i] for i in info.front]
    if len(front) > 1:
        figure.add_scatter(
            x=[c.x for c in front],
            y=[c.y for c in front],
            mode="lines",
            name="Pareto front",
            showlegend=False,
            line={"color": GREEN, "width": 1.5, "dash": "dash"},
            hoverinfo="skip",
        )
    rest = [c for c in info.candidates if not c.on_front and not c.is_baseline]
    rest = [rest[i] for i in thinned(len(rest))]
    for name, style, chosen in (
        ("dominated", {"color": SKY, "symbol": "circle-open"}, [c for c in rest if not c.broken]),
        ("breaks a limit", {"color": VERMILLION, "symbol": "x"}, [c for c in rest if c.broken]),
        ("on the front", {"color": GREEN, "symbol": "circle"}, front),
        (
            "baseline",
            {"color": ORANGE, "symbol": "square"},
            [c for c in info.candidates if c.is_baseline],
        ),
    ):
        if chosen:
            figure.add_scatter(
                x=[c.x for c in chosen],
                y=[c.y for c in chosen],
                mode="markers",
                name=name,
                marker={**style, "size": 10},
                hovertext=[_candidate(c, info) for c in chosen],
                hoverinfo="text",
            )
    if info.knee is not None:
        corner = info.candidates[info.knee]
        figure.add_scatter(
            x=[corner.x],
            y=[corner.y],
            mode="markers",
            name="knee",
            marker={"symbol": "circle-open", "size": 20, "color": PURPLE, "line": {"width": 3}},
            hoverinfo="skip",
        )
    for bound in info.x_limits:
        figure.add_vline(x=bound, line={"color": VERMILLION, "dash": "dash", "width": 1})
    for bound in info.y_limits:
        figure.add_hline(y=bound, line={"color": VERMILLION, "dash": "dash", "width": 1})
    return stamp(figure, simulated=info.simulated)


def _candidate(candidate: Candidate, info: ParetoInfo) -> str:
    return hover(
        f"{number(candidate.x)} {measure(info.x.metric)}, "
        f"{number(candidate.y)} {measure(info.y.metric)}",
        *setting_lines(candidate.setting),
        f"breaks {', '.join(candidate.broken)}" if candidate.broken else "",
    )


def draw_accept(info: AcceptInfo) -> go.Figure:
    """Draw accept length against step time with lines of equal speed."""
    figure = new_figure(
        "Accept length against step time",
        x="accept length, tokens a step",
        y="step time, ms",
        height=460,
    )
    if not info.steps:
        return nothing(figure, "no launch tells both accept length and step time yet")
    right = max(s.accept_length for s in info.steps) * 1.06 + 0.05
    top = max(s.step_time_ms for s in info.steps) * 1.08
    levels = [(v, GREY, "dot") for v in info.levels]
    if info.reference is not None:
        levels.append((info.reference, ORANGE, "dash"))
    for speed, colour, dash in levels:
        end = min(right, 0.97 * top * speed / 1000)
        if end <= 0.9:
            continue  # so slow that it leaves the figure above before it enters from the left
        figure.add_scatter(
            x=[0.9, end],
            y=[900 / speed, 1000 * end / speed],
            mode="lines+text",
            text=["", f"{speed:g}"],
            textposition="top center" if end < right else "middle right",
            textfont={"color": colour, "size": 11},
            line={"color": colour, "dash": dash, "width": 1},
            showlegend=False,
            cliponaxis=False,
            hoverinfo="skip",
        )
    for name, style, steps in (
        ("setting", marker(0), [s for s in info.steps if not s.is_baseline]),
        ("baseline", BASELINE, [s for s in info.steps if s.is_baseline]),
    ):
        shown = [steps[i] for i in thinned(len(steps))]
        if shown:
            figure.add_scatter(
                x=[s.accept_length for s in shown],
                y=[s.step_time_ms for s in shown],
                mode="markers",
                name=name,
                marker=style,
                hovertext=[
                    hover(
                        f"trial {s.number}: {number(s.tok_s)} tok/s",
                        f"{s.accept_length:.2f} tokens in {s.step_time_ms:.1f} ms",
                        *setting_lines(s.setting),
                    )
                    for s in shown
                ],
                hoverinfo="text",
            )
    low = min(s.step_time_ms for s in info.steps)
    figure.update_layout(margin={"r": 44})
    figure.update_xaxes(range=[0.9, right])
    figure.update_yaxes(range=[max(0.0, low * 0.85), top])
    return stamp(figure, simulated=info.simulated)


def draw_what_if(info: WhatIfInfo) -> go.Figure:
    """Draw decoding speeds as measured and as they would be at the supposed accept length."""
    figure = new_figure(
        f"If the accept length were {info.accept_length:g}",
        x="tok/s while decoding",
        height=max(260, 140 + 34 * len(info.settings)),
    )
    if not info.settings:
        return nothing(figure, "no setting tells its step time yet")
    names = labels(info.settings, 60)
    for name, index, values in (
        ("measured", 0, info.measured_tok_s),
        ("supposed", 1, info.supposed_tok_s),
    ):
        figure.add_scatter(
            x=values, y=names, mode="markers", name=name, marker=marker(index, size=11)
        )
    if info.baseline_tok_s is not None:
        figure.add_vline(x=info.baseline_tok_s, line={"color": ORANGE, "dash": "dash"})
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(legend_traceorder="normal")
    return stamp(figure, simulated=info.simulated)
