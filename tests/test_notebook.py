"""The notebook runs on any run folder and holds no logic of its own."""

import ast
import os
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


def test_the_notebook_defines_nothing_and_carries_no_output() -> None:
    book = read_notebook()
    nbformat.validate(book)
    for cell in book.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            kinds = (ast.FunctionDef, ast.ClassDef, ast.Lambda)
            assert not any(isinstance(node, kinds) for node in ast.walk(ast.parse(cell.source)))
