"""The benchmark of the search, in its smallest form."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.search import main, sweep
from benchmarks.search_machines import benchmark_study, drawn
from benchmarks.search_tables import table_landscape
from sweeper.errors import UserError
from sweeper.planning.plan import make_plan


def test_the_benchmark_prints_a_row_for_each_landscape_and_sampler(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = ["--landscapes", "drawn", "--seeds", "1", "--launches", "6"]
    assert main([*small, "--samplers", "auto", "random", "--workers", "2"]) == 0
    text = capsys.readouterr().out
    assert "| drawn | auto |" in text
    assert "| drawn | random |" in text
    assert "times auto" in text
    assert "settings launched twice: 0" in text


def test_sweeps_that_were_written_are_shown_and_drawn_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, picture = tmp_path / "runs.jsonl", tmp_path / "search.svg"
    small = ["--landscapes", "nospec", "--seeds", "2", "--launches", "6"]
    assert main([*small, "--samplers", "exhaustive", "random", "--out", str(out)]) == 0
    first = capsys.readouterr().out
    assert main(["--from", str(out), "--launches", "6", "--figure", str(picture)]) == 0
    assert capsys.readouterr().out == first
    root = ET.parse(picture).getroot()
    assert root.tag.endswith("svg")
    words = "".join(root.itertext())
    assert "nospec" in words
    assert "exhaustive" in words


def test_a_rival_goes_on_until_it_hits(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--landscapes", "drawn", "--seeds", "1", "--launches", "5", "--until", "9"]
    assert main([*small, "--samplers", "exhaustive"]) == 0
    assert "| drawn | exhaustive | >9/>9/>9 |" in capsys.readouterr().out


def test_random_landscapes_have_1524_settings_and_differ_by_seed() -> None:
    study = benchmark_study()
    plan = make_plan(study)
    assert len(plan.settings) == 1524
    draw = drawn("failing", study, plan)
    one, again, other = draw(1), draw(1), draw(2)
    assert one.truths == again.truths
    assert one.best_tok_s != other.best_tok_s
    share = sum(t.fails for t in one.truths.values()) / 1524
    assert 0.08 < share < 0.2


def measured_table(path: Path) -> Path:
    rows = [{"algorithm": None, "steps": None, "nccl": "default", "tok_s": 90.0}]
    for steps in range(1, 6):
        for index, nccl in enumerate(("default", "ring", "tree")):
            speed = 95.0 - 5 * abs(steps - 2) + 2 * index
            rows.append({"algorithm": "EAGLE3", "steps": steps, "nccl": nccl, "tok_s": speed})
    for row in rows:
        row["accept_length"] = 1.0 + 0.4 * (row["steps"] or 0)  # type: ignore[operator]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_a_table_of_measured_settings_is_a_landscape(tmp_path: Path) -> None:
    land = table_landscape(measured_table(tmp_path / "measured.parquet"))
    assert len(land.plan.settings) == 15
    assert land.best_tok_s == 99.0
    run = sweep(land, "auto", 0, noise=0.01, launches=16, workers=1)
    assert run.repeats == 0
    assert run.hit is not None
    assert run.regret[-1] == 0.0


def test_the_table_from_a_real_gpu_is_a_landscape() -> None:
    land = table_landscape(Path("benchmarks/landscapes/h200-one.parquet"))
    assert len(land.plan.settings) == 27
    assert land.best_tok_s == pytest.approx(550.173, abs=0.001)
    baseline = land.truths[land.study.baseline_launch().key]
    assert baseline.tok_s == pytest.approx((410.449 + 418.262 + 412.450 + 405.230) / 4, abs=0.001)
    run = sweep(land, "auto", 0, noise=0.02, launches=20, workers=1)
    assert run.hit is not None
    assert run.hit <= 6
    assert run.regret[-1] == 0.0


def test_a_table_without_speeds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.parquet"
    pq.write_table(pa.Table.from_pylist([{"steps": 1}, {"steps": 2}]), path)
    with pytest.raises(UserError, match="tok_s"):
        table_landscape(path)
