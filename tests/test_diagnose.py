"""`python -m sweeper.diagnose` as a person runs it, and the page that explains its classes."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sweeper.diagnose import diagnose, main
from sweeper.errors import POLICIES, FailureClass

ROOT = Path(__file__).parent.parent
LOGS = ROOT / "tests" / "data" / "sglang_logs"
EXPECTED: list[dict[str, Any]] = [
    json.loads(line) for line in (LOGS / "expected.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("knows_exit", [True, False])
@pytest.mark.parametrize("case", EXPECTED, ids=lambda e: e["file"])
def test_every_real_log_gets_its_verdict(case: dict[str, Any], knows_exit: bool) -> None:
    code = case["exit"] if knows_exit else None
    verdict = diagnose(LOGS / case["file"], exit_code=code)
    assert (verdict["class"], verdict["stage"]) == (case["class"], case["stage"])
    assert verdict["exit_code"] == code


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sweeper.diagnose", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_command_prints_one_json_object() -> None:
    done = run(str(LOGS / "fail_missing_module.log"), "--exit-code", "-9", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    verdict = json.loads(done.stdout)
    assert verdict["class"] == "build_missing"
    assert verdict["stops_sweep"] is True
    assert verdict["retry"] is False
    assert "deep_gemm" in verdict["line"]


def test_the_command_prints_a_page_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(LOGS / "fail_lowmem.log"), "--exit-code", "137"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^class +kv_pool_too_small$", printed, re.MULTILINE)
    assert re.search(r"^remedy +raise --mem-fraction-static$", printed, re.MULTILINE)
    assert re.search(r"^exit code +-9$", printed, re.MULTILINE)


def test_a_log_that_cannot_be_read_is_status_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none.log")]) == 2
    assert main([str(tmp_path)]) == 2
    assert "none.log" in capsys.readouterr().err


def test_a_cause_a_long_way_from_the_end_is_found(tmp_path: Path) -> None:
    log = tmp_path / "long.log"
    with log.open("wb") as file:
        file.write(b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n")
        file.write((b"." * 99 + b"\n") * 30_000)
    assert diagnose(log, exit_code=-9)["class"] == "oom"


def test_an_empty_log_is_a_start_or_an_unknown_end(tmp_path: Path) -> None:
    log = tmp_path / "empty.log"
    log.touch()
    assert diagnose(log)["class"] == "still_starting"
    assert diagnose(log, exit_code=1)["class"] == "unknown"


def test_a_useless_draft_is_told_though_the_server_is_healthy(tmp_path: Path) -> None:
    line = "Decode batch, #running-req: 1, accept len: 1.00, accept rate: 0.00, #queue-req: 0\n"
    log = tmp_path / "spec.log"
    log.write_text("The server is fired up and ready to roll!\n" + line * 9)
    verdict = diagnose(log)
    assert verdict["class"] == "spec_ineffective"
    assert verdict["stage"] == "serving"


def page_rows() -> list[list[str]]:
    text = (ROOT / "docs" / "failures.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_names_every_class_once() -> None:
    assert sorted(row[0].strip("`") for row in page_rows()) == sorted(FailureClass)


@pytest.mark.parametrize("row", page_rows(), ids=lambda row: row[0].strip("`"))
def test_the_page_says_what_the_policies_say(row: list[str]) -> None:
    policy = POLICIES[FailureClass(row[0].strip("`"))]
    assert row[2] == policy.fault
    assert row[3].startswith("yes") == policy.retry
    assert ("stops" in row[3]) == policy.stops_sweep
    assert row[4] == policy.remedy


@pytest.mark.parametrize(
    "row", [row for row in page_rows() if len(row) > 5], ids=lambda row: row[0].strip("`")
)
def test_the_pages_example_is_read_as_its_class(row: list[str], tmp_path: Path) -> None:
    log = tmp_path / "one.log"
    log.write_text(row[5].strip("`") + "\n")
    assert diagnose(log, exit_code=1)["class"] == row[0].strip("`")
