"""Make `examples/demo` and the pictures in the notebook anew: `python examples/make.py`.

    demo.yaml --sweeper.search--> a run --copy, cut--> demo/ --the notebook--> notebooks/pareto.ipynb

Takes about five minutes. Needs kaleido and a Chromium besides the test extras.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import pyarrow.parquet as pq
from nbclient import NotebookClient

from sweeper.report.images import has_kaleido

EXAMPLES = Path(__file__).resolve().parent
ROOT = EXAMPLES.parent
NOTEBOOK = ROOT / "notebooks" / "pareto.ipynb"
#: Lines that are kept of the one log that ships: the start and the first decode batches.
LOG_LINES = 120
#: What a code host shows without running anything; live figures would be ten times as large.
KEPT = ("image/png", "text/html", "text/plain")


def make_demo(finished: Path | None = None) -> None:
    """Run the demo's space, unless a finished run is given, and keep what ships of it."""
    with tempfile.TemporaryDirectory() as scratch:
        if finished is None:
            command = [sys.executable, "-m", "sweeper.search", str(EXAMPLES / "demo.yaml")]
            command += ["--executor", "inline", "--runs", scratch]
            subprocess.run(command, check=True)
            finished = Path(scratch) / "demo"
        target = EXAMPLES / "demo"
        shutil.rmtree(target, ignore_errors=True)
        for table in ("trials", "measurements", "requests"):
            (target / table).mkdir(parents=True)
            for path in sorted((finished / table).glob("*.parquet")):
                pack(path, target / table / path.name)
        for name in ("study.yaml", "best.sh"):
            shutil.copy(finished / name, target / name)
        (target / "logs").mkdir()
        for log in sorted((finished / "logs").glob("*.log"))[1:2]:
            lines = log.read_text(encoding="utf-8").splitlines(keepends=True)[:LOG_LINES]
            text = "".join(lines) + "... cut short\n"
            (target / "logs" / log.name).write_text(text, encoding="utf-8")


def pack(source: Path, target: Path) -> None:
    """Copy one file of rows without what only large files need: a third of the size."""
    pq.write_table(
        pq.read_table(source),
        target,
        compression="zstd",
        compression_level=19,
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
    )


def store_pictures() -> None:
    """Execute the notebook on the demo and store it with its figures as pictures."""
    if not has_kaleido():
        raise SystemExit("kaleido is missing: pip install kaleido")
    book: Any = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    run = next(c for c in book.cells if "parameters" in c.metadata.get("tags", ()))
    source = run.source
    # Whatever lies in runs/ here, the pictures are of the example.
    run.source = source.replace("../runs/eagle3", "../examples/demo")
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    client = NotebookClient(
        book, timeout=300, resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    )
    client.execute(env=env)
    run.source = source
    for cell in book.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.output_type != "stream"]
            for output in cell.outputs:
                output["data"] = {k: v for k, v in output["data"].items() if k in KEPT}
    nbformat.write(book, NOTEBOOK)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    make_demo(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    store_pictures()
