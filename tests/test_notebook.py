"""The notebook runs on any run folder and holds no logic of its own."""

import ast
import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from sweeper.config import parse_study
from sweeper.records import TrialRecord
from sweeper.report.notebook import PLOTLY_MIME
from sweeper.store import Store
from sweeper.study import Study
from tests.report import build

ROOT = Path(__file__).parent.parent
#: A better interval makes no stored output stale.
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
NOTEBOOK = ROOT / "notebooks" / "pareto.ipynb"


def write_run(folder: Path, study: Study, records: list[TrialRecord]) -> None:
    store = Store(folder)
    store.create()
    store.keep_study(study.text)
    for record in records:
        store.write(record)


def execute(folder: Path, run: Path) -> Any:
    book = read_notebook()
    cell = next(c for c in book.cells if "parameters" in c.metadata.get("tags", ()))
    cell.source += f"\nRUN = {str(run)!r}"
    client = NotebookClient(book, timeout=120, resources={"metadata": {"path": str(folder)}})
    # The kernel starts in another folder; the checkout must be found from there.
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT)})
    return book


def read_notebook() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]


def outputs(book: Any, kind: str) -> list[Any]:
    return [
        output["data"][kind]
        for cell in book.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if kind in output.get("data", {})
    ]


@pytest.mark.filterwarnings("ignore")
def test_the_notebook_shows_a_run_and_exports_settings_that_a_space_file_takes(
    tmp_path: Path,
) -> None:
    study = build.study("two-objectives")
    run = tmp_path / "runs" / "a run"
    write_run(run, study, build.night(study, 12))

    book = execute(tmp_path, run)

    figures = outputs(book, PLOTLY_MIME)
    assert len(figures) >= 6
    assert all("SIMULATED" in str(figure["layout"]) for figure in figures)
    known = outputs(book, "text/plain")[-1]
    old = "known:\n  - {steps: 3, topk: 1}\n"
    assert old in study.text
    assert parse_study(study.text.replace(old, known), "again.yaml").known


@pytest.mark.filterwarnings("ignore")
def test_the_stored_pictures_are_what_the_notebook_shows_of_the_example(tmp_path: Path) -> None:
    """Executed anew in a checkout without runs, it gives the outputs that are stored."""
    for name in ("notebooks", "examples"):
        (tmp_path / name).mkdir()
    (tmp_path / "examples" / "demo").symlink_to(ROOT / "examples" / "demo")
    stored, book = read_notebook(), read_notebook()
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    client = NotebookClient(
        book, timeout=120, resources={"metadata": {"path": str(tmp_path / "notebooks")}}
    )
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT)})

    for old, new in zip(stored.cells, book.cells, strict=True):
        if new.cell_type != "code":
            continue
        shown = [o for o in new.outputs if o.output_type != "stream"]
        assert len(old.outputs) == len(shown), "stale: python examples/make.py"
        for a, b in zip(old.outputs, shown, strict=True):
            if PLOTLY_MIME in b["data"]:
                assert a["data"]["text/plain"] == b["data"]["text/plain"]
                assert a["data"]["image/png"]
            elif "text/html" not in b["data"]:
                shapes = [_NUMBER.sub("#", side["data"]["text/plain"]) for side in (a, b)]
                assert shapes[0] == shapes[1], "stale: python examples/make.py"


def test_the_notebook_defines_nothing_and_is_small_enough_to_be_shown() -> None:
    book = read_notebook()
    nbformat.validate(book)
    for cell in book.cells:
        if cell.cell_type == "code":
            kinds = (ast.FunctionDef, ast.ClassDef, ast.Lambda)
            assert not any(isinstance(node, kinds) for node in ast.walk(ast.parse(cell.source)))
    assert NOTEBOOK.stat().st_size < 1_000_000
    assert not outputs(book, PLOTLY_MIME)


def test_what_ships_is_small_and_says_that_it_is_simulated() -> None:
    folder = ROOT / "examples" / "demo"
    files = [p for p in folder.rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) < 1_200_000
    records = Store(folder).records(requests=True)
    assert records
    assert all(r.trial.launch.simulated for r in records)
    assert "SIMULATED" in (folder / "best.sh").read_text(encoding="utf-8")
    (log,) = (folder / "logs").iterdir()
    assert "SIMULATED" in log.read_text(encoding="utf-8").splitlines()[0]
    assert parse_study((folder / "study.yaml").read_text(encoding="utf-8"), "demo").simulated
