"""`python -m sweeper.show` over real stores, at rest and while a sweep writes to them."""

import io
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sweeper.live import Live
from sweeper.records import Measurement
from sweeper.report.notebook import setting_rows
from sweeper.report.page import render
from sweeper.show import follow, main
from sweeper.store import Store
from sweeper.terminal.lines import best_line, record_line
from sweeper.terminal.look import look
from tests.report import build
from tests.report.runs import RUNS, run_of, store_run
from tests.sweeping import space_text


@pytest.fixture
def night(tmp_path: Path) -> Path:
    study = build.study()
    folder = tmp_path / "runs" / "a night"
    store_run(folder, study, build.night(study, 12))
    return folder


def shown(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main([str(w) for w in words]) == 0
    return capsys.readouterr().out


def facts(capsys: pytest.CaptureFixture[str], folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shown(capsys, folder, "--json"))
    return found


def test_a_finished_run_is_shown_with_progress_answer_and_table(
    night: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, night)
    seen = look(night, datetime.now(UTC))
    assert text.startswith("SIMULATED eagle3: no driver is running\n")
    assert f"{seen.launches} of 30 launches" in text
    assert seen.verdict.sentence in text
    assert "baseline" in text
    assert "\x1b" not in text


def test_json_is_one_line_with_the_same_facts(
    night: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, night, "--json")
    assert text.count("\n") == 1
    seen = look(night, datetime.now(UTC))
    found = json.loads(text)
    assert found["sentence"] == seen.verdict.sentence
    assert found["command"] == seen.verdict.command
    assert found["driver"] is None
    assert found["launches"] == 12
    assert found["simulated"] is True
    assert found["best"]["values"]["output_tok_s (single)"] > 0
    assert len(found["settings"]) == len({s["key"] for s in found["settings"]})


@pytest.mark.parametrize("kind", sorted(RUNS))
def test_every_kind_of_run_is_shown_in_text_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    run = RUNS[kind]()
    store_run(tmp_path / "run", run.study, list(run.records))
    text = shown(capsys, tmp_path / "run")
    assert not {"\x00", "\x1b", "\u202e"} & set(text)
    found = facts(capsys, tmp_path / "run")
    failures = [r for r in run.records if r.failure]
    if failures:
        assert found["last_failure"]["class"] == failures[-1].failure.kind  # type: ignore[union-attr]
        assert "remedy: " in text
    else:
        assert found["last_failure"] is None


def test_a_baseline_that_lacks_an_objective_is_shown_by_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RUNS["no_accept_length"]()
    store_run(tmp_path / "run", run.study, list(run.records))
    found = facts(capsys, tmp_path / "run")
    assert list(found["baseline"]["values"].values()) == [90.0, None, 300.0]
    assert [s["baseline"] for s in found["settings"]].count(True) == 1
    (line,) = (x for x in shown(capsys, tmp_path / "run").splitlines() if "│ baseline" in x)
    assert [cell.strip() for cell in line.split("│")][1:4] == ["90.0", "", "300.0"]
    last = setting_rows(run)[-1]
    assert last["setting"] == "baseline"
    assert list(last.values())[1:4] == [90.0, None, 300.0]
    assert "+5.6 % to the baseline" in best_line(list(run.records), run.study)
    live = Live(run.study, None)
    told = live.numbers(list(run.records), [], status={}, lost=0, stopping=False, now_s=0.0)
    assert told.baseline_tok_s == {"": 90.0}


@pytest.mark.parametrize("where", ["single", "busy"])
def test_an_objective_is_not_told_twice_unless_it_is_of_another_workload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    more = f", {{maximize: accept_length, workload: {where}}}]"
    text = build.SPACE.replace("workload: single}]", "workload: single}" + more)
    study = build.small_study(text.replace("workloads: [", "workloads: [{name: busy}, "))
    both = [
        Measurement(workload=name, requests=5, output_tok_s=90.0, accept_length=length)
        for name, length in (("busy", 1.25), ("single", 1.75))
    ]
    records = [build.record(study, 0, build.point(1), measurements=both)]
    store_run(tmp_path / "run", study, records)
    line = record_line(records[0], study)
    (row,) = (x for x in shown(capsys, tmp_path / "run").splitlines() if "│ draft=" in x)
    page = render([run_of(study, records)])
    if where == "single":
        assert line.count("1.75") == row.count("1.75") == 1
        assert page.count("accept length</th>") == 0
    else:
        assert "1.25" in line
        assert "accept length 1.75" in line
        assert "1.25" in row
        assert "1.75" in row
        assert page.count("accept length</th>") == 1


def test_the_ratio_of_a_number_to_be_made_small_is_that_of_the_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = build.small_study(
        build.SPACE.replace("maximize: output_tok_s", "minimize: ttft_p99_ms")
    )
    records = [
        build.record(
            study,
            number,
            at,
            measurements=[Measurement(workload="single", requests=5, ttft_p99_ms=ttft)],
        )
        for number, (at, ttft) in enumerate(((None, 810.0), (build.point(1), 404.0)))
    ]
    store_run(tmp_path / "run", study, records)
    low, middle, high = facts(capsys, tmp_path / "run")["ratio"]
    assert low < middle < high
    assert middle == pytest.approx(404 / 810)


def test_a_run_is_found_by_its_name_below_runs(
    night: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(night.parent.parent)
    assert "12 of 30 launches" in shown(capsys, "a night")


@pytest.mark.parametrize("kind", ["missing", "empty", "broken", "file"])
@pytest.mark.parametrize("option", ["--json", "--follow", None])
def test_a_mistake_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, option: str | None
) -> None:
    folder = tmp_path / kind
    if kind == "file":
        folder.write_text("no folder", encoding="utf-8")
    elif kind != "missing":
        folder.mkdir()
    if kind == "broken":
        (folder / "study.yaml").write_text("study: [\n", encoding="utf-8")
    assert main([str(folder), *([option] if option else [])]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


def test_a_file_cut_by_a_crash_is_named(night: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (night / "trials" / "000003.parquet").write_bytes(b"PAR1 cut")
    assert "trials/000003.parquet is left out" in shown(capsys, night)


def test_looking_changes_nothing_in_the_folder(night: Path) -> None:
    def state() -> dict[Path, tuple[int, int]]:
        return {
            p: (p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(night.parent.rglob("*"))
        }

    before = state()
    assert main([str(night)]) == 0
    assert state() == before


def test_a_living_driver_is_seen_and_its_lock_is_left_to_it(
    night: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(night) as store:
        store.lock()
        log = night / "logs" / "000012.log"
        log.write_text("[x] loading\n[x] Capture cuda graph --api-key hunter2\n", "utf-8")
        found = facts(capsys, night)
        text = shown(capsys, night)
    assert found["driver"].isdigit()
    assert [r["number"] for r in found["running"]] == [12]
    assert "Capture cuda graph" in text
    assert "hunter2" not in text
    assert facts(capsys, night)["driver"] is None
    with Store(night) as store:
        store.lock()


def test_logs_of_trials_that_an_earlier_driver_gave_up_are_not_shown_as_running(
    night: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = night / "logs" / "000012.log"
    log.write_text("given up\n", encoding="utf-8")
    os.utime(log, (1_000_000_000, 1_000_000_000))
    with Store(night) as store:
        store.lock()
        assert facts(capsys, night)["running"] == []


def test_follow_ends_at_once_where_nothing_runs(
    night: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no driver is running" in shown(capsys, night, "--follow")


def test_follow_tells_each_trial_and_ends_with_the_driver(tmp_path: Path) -> None:
    study = build.study()
    records = build.night(study, 6)
    folder = tmp_path / "run"
    store_run(folder, study, records[:3])
    driver = Store(folder)
    driver.lock()
    left = list(records[3:])

    def sleep(seconds: float) -> None:
        del seconds
        if left:
            driver.write(left.pop(0))
        else:
            driver.unlock()

    paper = io.StringIO()
    follow(folder, paper, as_json=False, now=lambda: datetime.now(UTC), sleep=sleep)
    told = [
        line.split("#")[1].split()[0] for line in paper.getvalue().splitlines() if line[:1] == "["
    ]
    assert told == ["3", "4", "5"]
    assert paper.getvalue().count("no driver is running") == 1


@pytest.mark.slow
def test_a_sweep_is_followed_from_another_shell_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "seen.yaml").write_text(
        space_text("seen", steps="[2, 3, 4]", launches=4), encoding="utf-8"
    )
    words = [sys.executable, "-m", "sweeper.search", "seen.yaml", "--executor", "inline"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL) as sweep:
        end = time.monotonic() + 120
        folder = tmp_path / "runs" / "seen"
        while not (folder / ".lock").exists() or not Store(folder).driver():
            assert time.monotonic() < end
            time.sleep(0.05)
        done = subprocess.run(
            [sys.executable, "-m", "sweeper.show", "seen", "--follow", "--json"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert sweep.wait(timeout=60) == 0
    assert done.returncode == 0, done.stderr
    looks = [json.loads(line) for line in done.stdout.splitlines()]
    assert looks[0]["driver"] == str(sweep.pid)
    assert looks[-1]["driver"] is None
    assert looks[-1]["states"] == {"complete": looks[-1]["launches"]}
    counts = [look["launches"] for look in looks]
    assert counts == sorted(counts)


def test_a_reader_that_goes_away_causes_no_traceback(night: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "sweeper.show", str(night)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
