"""The package as users install it: from a wheel, away from the checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wheel import install

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("wheel"))


def run(installed: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_wheel_finds_the_shipped_spaces_by_name(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "-m", "sweeper.search", "eagle3", "--plan")
    assert done.returncode == 0, done.stderr
    assert "study eagle3" in done.stdout
    where = run(installed, tmp_path, "-c", "import sweeper; print(sweeper.__file__)")
    assert where.stdout.startswith(str(installed))


@pytest.mark.slow
def test_a_wheel_has_all_that_a_sweep_needs(installed: Path, tmp_path: Path) -> None:
    words = ["-m", "sweeper.search", "one-gpu", "--launches", "1", "--executor", "inline"]
    done = run(installed, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "one-gpu" / "report.html").is_file()


def test_importing_the_package_imports_no_heavy_one(installed: Path, tmp_path: Path) -> None:
    code = (
        "import sys, sweeper\n"
        "heavy = {'ray', 'optuna', 'plotly', 'torch', 'pyarrow', 'numpy'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    assert run(installed, tmp_path, "-c", code).stdout == "[]\n"
