"""The line of Ray's errors that tells the cause, on errors as Ray makes them."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DENIED = "PermissionError: the folder is another's"


def test_the_line_tells_the_cause() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "tests.cluster.ray_errors"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    ).stdout
    assert json.loads(told) == {
        "raised": DENIED,
        "as its cause": DENIED,
        "in its start": DENIED,
        "killed": "The actor is dead because its worker process has died. End of file.",
        "unknown": "The actor died unexpectedly before finishing this task.",
        "late": "did not start in 120 s",
        "silent": "RayError",
    }
