"""Which draft trees the released SGLang's own code takes, and which we refuse."""

import json
import subprocess
from pathlib import Path

import pytest

from sweeper.engines.sglang import SGLang
from sweeper.records import Launch
from tests.real.installed import python

pytestmark = pytest.mark.sglang


@pytest.mark.parametrize("version", ["0.5.15", "0.5.17", "0.5.23"])
def test_a_tree_is_refused_exactly_where_the_released_code_breaks(version: str) -> None:
    program = Path(__file__).with_name("tree_program.py")
    done = subprocess.run(
        [python(version), str(program)], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = {tuple(shape): taken for *shape, taken in json.loads(done.stdout.splitlines()[-1])}
    assert {True, False} == set(found.values())
    allowed = {shape: SGLang().refuse(_launch(*shape)) is None for shape in found}
    assert allowed == found


def _launch(steps: int, topk: int, draft: int) -> Launch:
    return Launch(
        engine="sglang",
        command=("python", "-m", "sglang.launch_server"),
        model="/models/target",
        gpus=1,
        flags={
            "speculative-algorithm": "EAGLE3",
            "speculative-draft-model-path": "/models/draft",
            "speculative-num-steps": steps,
            "speculative-eagle-topk": topk,
            "speculative-num-draft-tokens": draft,
        },
    )
