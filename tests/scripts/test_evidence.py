"""The pages of `docs/evidence` say what the stored rows say."""

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from scripts import evidence, evidence_draft_tp, evidence_landscape, evidence_ranks, evidence_two
from scripts.kill_owner import SIGNS, kill_owner

ROOT = Path(__file__).parents[2]


PAGES = {
    "h200": evidence.TABLES | evidence_landscape.TABLES,
    "h200-ranks": evidence_ranks.TABLES,
    "h200-two": evidence_two.TABLES | evidence_draft_tp.TABLES,
}
TITLES = [(page, title) for page, tables in PAGES.items() for title in tables]


@pytest.mark.parametrize(("page", "title"), TITLES)
def test_each_table_of_a_page_is_made_from_the_rows(page: str, title: str) -> None:
    text = (ROOT / "docs" / "evidence" / f"{page}.md").read_text(encoding="utf-8")
    assert PAGES[page][title]() in text


def test_the_landscape_that_is_kept_is_the_one_of_the_rows(tmp_path: Path) -> None:
    assert evidence_landscape.main(["--landscape", str(tmp_path / "made.parquet")]) == 0
    kept = pq.read_table(ROOT / "benchmarks" / "landscapes" / "h200-one.parquet")
    assert pq.read_table(tmp_path / "made.parquet").equals(kept)
    assert evidence_landscape.landscape().num_rows == kept.num_rows


@pytest.mark.parametrize("when", SIGNS)
def test_no_server_outlives_a_killed_driver(tmp_path: Path, when: str) -> None:
    space = tmp_path / "killed.yaml"
    text = (ROOT / "search_spaces" / "one-gpu.yaml").read_text(encoding="utf-8")
    space.write_text(text.replace("study: one-gpu", "study: killed"), encoding="utf-8")
    found = kill_owner(str(space), when, runs=tmp_path / "runs", wait_s=120, gone_s=30)
    assert found["processes"] > 0
    assert found["processes_gone_s"] is not None


def test_a_sweep_that_ends_first_is_no_success(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "scripts.kill_owner", "nowhere.yaml", "--when", "loading"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode != 0
