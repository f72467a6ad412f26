"""`python -m sweeper.report` and `write_report`, on real folders."""

import subprocess
import sys
from pathlib import Path

import pytest

from sweeper.errors import UserError
from sweeper.report import write_report
from sweeper.report.__main__ import main
from sweeper.report.images import has_kaleido
from tests.report import build
from tests.report.runs import store_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    study = build.study()
    found = tmp_path / "runs" / "a night"
    store_run(found, study, build.night(study, 8))
    return found


def test_the_page_is_written_into_the_folder_and_nothing_is_left_beside(folder: Path) -> None:
    before = {p.name for p in folder.iterdir()}
    assert write_report(folder) == folder / "report.html"
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "a night" in text
    assert "by-prompt" in text
    assert {p.name for p in folder.iterdir()} - before == {"report.html"}


def test_writing_again_gives_the_same_page(folder: Path) -> None:
    first = write_report(folder, plotly="directory").read_bytes()
    assert write_report(folder, plotly="directory").read_bytes() == first


def test_a_shared_script_is_put_beside_the_page_once(folder: Path) -> None:
    write_report(folder, plotly="directory")
    script = folder / "plotly.min.js"
    stamp = script.stat().st_mtime_ns
    write_report(folder, plotly="directory")
    assert script.stat().st_mtime_ns == stamp
    assert (folder / "report.html").stat().st_size < 400_000


def test_a_page_can_be_written_before_the_first_trial(tmp_path: Path) -> None:
    store_run(tmp_path / "young", build.study(), [])
    assert write_report(tmp_path / "young").is_file()


def test_a_trial_file_cut_by_a_crash_is_named_on_the_page(folder: Path) -> None:
    (folder / "trials" / "000003.parquet").write_bytes(b"PAR1 cut")
    assert "trials/000003.parquet is left out" in write_report(folder).read_text(encoding="utf-8")


def test_requests_that_cannot_be_read_are_named_on_the_page(folder: Path) -> None:
    (folder / "requests" / "000000.parquet").write_bytes(b"PAR1 cut")
    text = write_report(folder).read_text(encoding="utf-8")
    assert text.count("requests/000000.parquet is left out") == 1


def test_several_runs_make_one_page(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = build.study()
    store_run(tmp_path / "runs" / "after", study, build.night(study, 10, seed=3))
    output = tmp_path / "both.html"
    runs = [str(folder), str(tmp_path / "runs" / "after")]
    assert main([*runs, "--output", str(output)]) == 0
    assert capsys.readouterr().out == f"{output}\n"
    assert "What changed" in output.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["missing", "empty", "broken"])
def test_a_wrong_folder_gives_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    if name != "missing":
        (tmp_path / name).mkdir()
    if name == "broken":
        (tmp_path / name / "study.yaml").write_text("study: [\n", encoding="utf-8")
    assert main([str(tmp_path / name)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert name in captured.err


def test_an_unknown_mode_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="inline, directory"):
        write_report(folder, plotly="cdn")


def test_a_folder_that_cannot_be_written_to_keeps_its_old_page(folder: Path) -> None:
    page = folder / "report.html"
    page.write_text("old", encoding="utf-8")
    # A folder in the way of the temporary file refuses even root.
    (folder / ".report.html.partial").mkdir()
    with pytest.raises(UserError, match="cannot write"):
        write_report(folder)
    assert page.read_text(encoding="utf-8") == "old"


def test_importing_the_package_does_not_import_plotly() -> None:
    code = "import sys, sweeper.report; sys.exit('plotly' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_images_without_kaleido_are_one_clear_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if has_kaleido():
        pytest.skip("kaleido is installed")
    assert main([str(folder), "--images", "png"]) == 2
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "images need the package kaleido and a Chrome or Chromium: pip install kaleido"
    ]
    # The page itself needs none of that.
    assert (folder / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_images_are_written_beside_the_page(folder: Path, kind: str) -> None:
    if not has_kaleido():
        pytest.skip("kaleido is not installed")
    assert main([str(folder), "--images", kind]) == 0
    files = sorted((folder / "images").iterdir())
    assert len(files) > 10
    start = b"\x89PNG" if kind == "png" else b"<svg"
    assert all(f.read_bytes().startswith(start) for f in files)
