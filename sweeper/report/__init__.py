"""The report: rows -> what to show -> figures -> one HTML page. The only user of Plotly.

    Store --run.py--> Run --progress, tradeoffs, effects, prompts, trouble, provenance--> Info
        Info --draw_*--> Figure --sections, page--> report.html

Every figure has an Info, plain data that tests compare and the notebook uses as well.
"""

from collections.abc import Sequence
from pathlib import Path

__all__ = ["write_pages", "write_report"]


def write_report(folder: Path, *, plotly: str = "inline") -> Path:
    """Write `report.html` into the folder of a study and return its path.

    Where the study was measured on several kinds of hardware each has a page, those of all but
    the most used one with its name.

    Args:
        folder: The study's folder; it may be in the middle of a sweep.
        plotly: "inline" for one file, "directory" for a small page with Plotly's script beside.

    Raises:
        UserError: The folder holds no study, or cannot be written to.
    """
    # Plotly takes half a second to import; whoever only imports this package does without.
    from sweeper.report.write import write_strata

    return write_strata(folder, plotly=plotly)


def write_pages(folders: Sequence[Path], output: Path, *, plotly: str = "inline") -> Path:
    """Write one page on one study, or on several side by side; whole or not at all.

    Raises:
        UserError: A folder holds no study, or the page cannot be written.
    """
    from sweeper.report.write import write_pages as write

    return write(folders, output, plotly=plotly)
