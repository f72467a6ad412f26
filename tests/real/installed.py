"""Where `scripts/real_sglang.sh` puts the released SGLangs."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from sweeper.records import FlagValue

CHECKOUT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("SWEEPER_SGLANG") or CHECKOUT / ".sglang")
MODEL = str(FOLDER / "models" / "tiny")
DRAFT = str(FOLDER / "models" / "tinydraft")

#: What any server needs to run on a CPU, and not to spin while it has nothing to do.
CPU_FLAGS: Mapping[str, FlagValue] = {
    "device": "cpu",
    "attention-backend": "torch_native",
    "cuda-graph-backend-decode": "disabled",
    "cuda-graph-backend-prefill": "disabled",
    "mem-fraction-static": 0.5,
    "max-total-tokens": 8192,
    "context-length": 2048,
    "sleep-on-idle": True,
}
#: Chains of draft tokens from earlier text; the trie is small, since its default takes 2 GB.
NGRAM_FLAGS: Mapping[str, FlagValue] = {
    "speculative-algorithm": "NGRAM",
    "speculative-ngram-max-bfs-breadth": 1,
    "speculative-ngram-capacity": 20000,
}


def python(version: str) -> str:
    """Return the Python that has this SGLang; without one the test fails with what to do."""
    path = FOLDER / f"python-{version}"
    if not path.is_file():
        pytest.fail(f"there is no {path}; run scripts/real_sglang.sh")
    return str(path)
