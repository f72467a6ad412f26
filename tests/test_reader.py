"""A sweep whose reader goes away goes on, and keeps its results."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sweeping import servers_of, space_text, store_of

pytestmark = pytest.mark.slow


def begun(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start the command with both its outputs in one pipe, and return it once it has spoken."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sweeper.search", "space.yaml", "--executor", "inline", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


@pytest.mark.parametrize("words", [(), ("--plan",)])
def test_a_command_outlives_its_reader(tmp_path: Path, words: tuple[str, ...]) -> None:
    text = space_text("unread", steps=[1, 2, 3], launches=3, drop="speculative-*", base="{}")
    (tmp_path / "space.yaml").write_text(text, encoding="utf-8")
    process = begun(tmp_path, *words)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=180) == 0
    if not words:
        assert len(store_of(tmp_path, "unread").records()) == 3
        assert (tmp_path / "runs" / "unread" / "report.html").exists()
    assert servers_of("unread") == []
