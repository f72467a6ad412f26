"""Colours, templates and the empty figure that all drawings start from.

Colours are those of Okabe and Ito (2008), which people with any common colour blindness tell
apart; black and yellow are left out, as each vanishes on one of the two backgrounds. Nothing is
told by colour alone: series differ in marker or dash too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from sweeper.objective import Objective
from sweeper.report.settings import axis_title
from sweeper.report.text import label

BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
SKY, VERMILLION, PURPLE, GREY = "#56B4E9", "#D55E00", "#CC79A7", "#8A8F98"
#: Colours and shapes of series by index; orange squares are the baseline, everywhere.
COLOURS = (SKY, GREEN, PURPLE, BLUE, VERMILLION, GREY)
SYMBOLS = ("circle", "diamond", "triangle-up", "cross", "star", "hexagon")
BASELINE = {"color": ORANGE, "symbol": "square", "size": 9}
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
#: Shades for the stages of a start, told apart by their order and the hover as well.
BLUES = ("#0b4f7d", "#0072B2", "#2b8ccb", "#56B4E9", "#86c9f0", "#b3ddf6")
#: Dark blue to light orange, with lightness rising evenly, so that it prints in grey.
SCALE = ((0.0, "#00334e"), (0.35, "#0072B2"), (0.7, "#7cc4ec"), (1.0, "#fbe3b0"))

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
STAMP = "SIMULATED"
#: Pixels above the plot, and how many more a title needs.
TOP, TITLE = 40, 40
#: Points of one cloud that are drawn; the rest only slows the page down.
CLOUD = 400


def _template(ink: str, paper: str, grid: str, edge: str) -> dict[str, Any]:
    axis = {
        "automargin": True,
        "gridcolor": grid,
        "linecolor": edge,
        "tickcolor": edge,
        "zeroline": False,
        "ticks": "outside",
        "title": {"standoff": 10},
    }
    return {
        "layout": {
            "font": {"family": FONT, "size": 13, "color": ink},
            "paper_bgcolor": paper,
            "plot_bgcolor": paper,
            "colorway": list(COLOURS),
            "xaxis": axis,
            "yaxis": axis,
            "hoverlabel": {
                "align": "left",
                "bgcolor": paper,
                "bordercolor": edge,
                "font": {"family": FONT, "size": 13, "color": ink},
                "namelength": -1,
            },
            "legend": {
                "orientation": "h",
                "x": 0,
                "xanchor": "left",
                "y": 1.02,
                "yanchor": "bottom",
                "bgcolor": "rgba(0,0,0,0)",
            },
            "margin": {"l": 56, "r": 18, "t": TOP, "b": 48},
            "hovermode": "closest",
        }
    }


LIGHT = _template("#1b1f24", "#ffffff", "#e4e7eb", "#6b7280")
DARK = _template("#e6e8eb", "#171b21", "#2c323b", "#9aa3ad")
_TEMPLATE = go.layout.Template(LIGHT)


def new_figure(title: str, *, x: str = "", y: str = "", height: int = 400) -> go.Figure:
    """Return an empty figure with titles, all three escaped already."""
    # Given to the constructor: an update would merge it into Plotly's own, and takes long.
    layout = go.Layout(
        template=_TEMPLATE,
        title={"text": title, "font": {"size": 15}, "x": 0, "xanchor": "left", "xref": "paper"},
        height=height,
        margin={"t": TOP + TITLE},
        xaxis={"title": {"text": x}} if x else {},
        yaxis={"title": {"text": y}} if y else {},
    )
    return go.Figure(layout=layout)


def legend_below(figure: go.Figure, names: Sequence[str]) -> None:
    """Put the legend under the axis title, a name below the other, and make room for it."""
    room = 17 * sum(name.count("<br>") + 1 for name in names) + 10 * len(names)
    figure.update_layout(
        height=figure.layout.height + room,
        margin={"b": 58 + room},
        legend={"orientation": "v", "yref": "container", "y": 0, "yanchor": "bottom"},
    )


def axis_label(objective: Objective) -> str:
    """Return an objective's axis title, escaped; workloads are named by users."""
    return label(axis_title(objective), 80)


def stamp(figure: go.Figure, *, simulated: bool) -> go.Figure:
    """Write SIMULATED across the figure, into the figure itself, and return it."""
    if simulated:
        figure.add_annotation(
            name="simulated",
            text=STAMP,
            x=0.5,
            y=0.5,
            xref="paper",
            yref="paper",
            showarrow=False,
            textangle=-18,
            font={"size": 46, "color": "#808080"},
            opacity=0.36,
        )
    return figure


def nothing(figure: go.Figure, why: str) -> go.Figure:
    """Say in the figure's middle why it is empty."""
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    figure.update_layout(height=140)
    figure.add_annotation(
        text=why, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False, name="empty"
    )
    return figure


def marker(index: int, *, size: int = 9) -> Mapping[str, Any]:
    """Return colour and shape of the series of this index."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "symbol": SYMBOLS[index % len(SYMBOLS)],
        "size": size,
    }


def line(index: int) -> Mapping[str, Any]:
    """Return colour and dash of the series of this index."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "dash": DASHES[index % len(DASHES)],
        "width": 2,
    }


def thinned(count: int, keep: Sequence[int] = (), limit: int = CLOUD) -> list[int]:
    """Return at most `limit` indices below `count`, evenly spread, besides all of `keep`."""
    if count <= limit:
        return list(range(count))
    step = count / limit
    return sorted({int(i * step) for i in range(limit)} | set(keep))
