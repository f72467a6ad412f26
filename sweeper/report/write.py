"""The page on disk."""

from collections.abc import Sequence
from pathlib import Path

from plotly.offline import get_plotlyjs

from sweeper.errors import UserError
from sweeper.planning.strata import beside, outdated
from sweeper.report.page import PLOTLY_FILE, render
from sweeper.report.run import Run, load_run, load_strata
from sweeper.store import write_text

MODES = ("inline", "directory")


def write_strata(folder: Path, *, plotly: str) -> Path:
    """Write a page for each kind of hardware of one study; return the path of the first.

    Raises:
        UserError: The folder holds no study, the mode is unknown, or a page cannot be written.
    """
    runs = load_strata(folder)
    for kind, run in runs.items():
        _write([run], folder / beside("report.html", kind, list(runs)), plotly)
    if (old := outdated("report.html", list(runs))) is not None:
        (folder / old).unlink(missing_ok=True)
    return folder / "report.html"


def write_pages(folders: Sequence[Path], output: Path, *, plotly: str) -> Path:
    """Write one page on the studies in `folders` and return its path.

    Raises:
        UserError: A folder holds no study, the mode is unknown, or the page cannot be written.
    """
    return _write([load_run(folder) for folder in folders], output, plotly)


def _write(runs: Sequence[Run], output: Path, plotly: str) -> Path:
    if plotly not in MODES:
        raise UserError(f"plotly must be one of {', '.join(MODES)}, not {plotly!r}")
    page = render(runs, plotly=plotly)
    try:
        if plotly == "directory":
            _put_plotly(output.with_name(PLOTLY_FILE))
        write_text(output, page)
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from None
    return output


def _put_plotly(path: Path) -> None:
    """Write Plotly's script, unless it stands there already."""
    script = get_plotlyjs()
    if not path.is_file() or path.stat().st_size != len(script.encode()):
        write_text(path, script)
