"""This checkout as a user installs it: from a wheel, here without dependencies."""

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parent.parent


def install(folder: Path) -> Path:
    """Install into a folder of its own, to be put on the path of a Python that has them."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    wheel = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(CHECKOUT)]
    subprocess.run([*pip, *wheel], check=True, timeout=120)
    (built,) = folder.glob("sweeper-*.whl")
    target = folder / "site"
    words = ["install", "--no-deps", "--no-index", "--target", str(target), str(built)]
    subprocess.run([*pip, *words], check=True, timeout=120)
    return target
