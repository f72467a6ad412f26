"""Figures as picture files, by kaleido and a Chromium, where both are there."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go

from sweeper.errors import UserError
from sweeper.report.run import load_run
from sweeper.report.sections import sections

KINDS = ("png", "svg")
#: Columns of a figure, in pixels; a PNG has twice as many, for print.
WIDTH, SCALE = 900, 2


def has_kaleido() -> bool:
    """Tell whether kaleido is installed; its browser may be missing still."""
    return importlib.util.find_spec("kaleido") is not None


def picture(figure: go.Figure) -> bytes | None:
    """Return the figure as a PNG, or None where kaleido or its browser is missing or fails."""
    if not has_kaleido():
        return None
    try:
        found: bytes = figure.to_image(format="png", width=WIDTH, scale=1)
    except (RuntimeError, ValueError, OSError):
        return None
    return found


def write_images(folders: Sequence[Path], output: Path, kind: str) -> list[Path]:
    """Write all figures of one study, or of several, into the folder `output`.

    Returns:
        The files, in the page's order; named after the figure, and the run where there are several.

    Raises:
        UserError: A folder holds no study, kaleido is missing, or it cannot draw or write.
    """
    if kind not in KINDS:
        raise UserError(f"images must be one of {', '.join(KINDS)}, not {kind!r}")
    if not has_kaleido():
        raise UserError(
            "images need the package kaleido and a Chrome or Chromium: pip install kaleido"
        )
    runs = [load_run(folder) for folder in folders]
    figures: list[go.Figure] = []
    files: list[Path] = []
    for number, run in enumerate(runs):
        before = f"{number}-" if len(runs) > 1 else ""
        for section in sections(run):
            for chart in (*section.charts, *section.small):
                figures.append(chart.figure)
                files.append(output / f"{before}{chart.id}.{kind}")
    try:
        output.mkdir(parents=True, exist_ok=True)
        _draw(figures, files, kind)
    except OSError as error:
        raise UserError(f"cannot write to {output}: {error.strerror}") from None
    except (RuntimeError, ValueError) as error:
        raise UserError(f"kaleido cannot draw: {' '.join(str(error).split())[:300]}") from None
    return files


def _draw(figures: Sequence[go.Figure], files: Sequence[Path], kind: str) -> None:
    import plotly.io

    # One call for all of them starts the browser once.
    plotly.io.write_images(
        fig=list(figures),
        file=[str(file) for file in files],
        format=kind,
        width=WIDTH,
        scale=SCALE if kind == "png" else 1,
    )
