"""Servers that stand side by side are measured in turn, and none is left."""

from pathlib import Path

import pytest

from scripts.side_by_side import main, share
from sweeper.errors import FailureClass, UserError
from sweeper.records import TrialState
from sweeper.store import Store
from tests.sweeping import servers_of

SPACE = """\
study: side
engine:
  kind: simulated
  model: /models/target
  gpus: 1
  flags: {{speculative-algorithm: EAGLE3, speculative-draft-model-path: /models/draft}}
  simulation: {{calibration: small-1gpu, time_scale: 20, start_s: 20, fault: "{fault}"}}
parameters:
  steps: {{flag: speculative-num-steps, values: [1, 2, 3]}}
  topk: {{flag: speculative-eagle-topk, values: [1]}}
  draft_tokens: {{flag: speculative-num-draft-tokens, values: [8], when: topk > 1, otherwise: steps + 1}}
known:
  - {{steps: 3, topk: 1}}
  - {{steps: 1, topk: 1}}
workloads: [{{name: single, max_tokens: 40}}]
objectives: [{{maximize: output_tok_s}}]
budget: {{launches: 3}}
"""

pytestmark = pytest.mark.slow


def test_servers_of_fewer_gpus_than_there_are_take_them_in_turn() -> None:
    assert [share((0, 1, 2, 3, 4), 2, n) for n in range(3)] == [(0, 1), (2, 3), (0, 1)]
    assert share((4, 6), 2, 7) == (4, 6)
    assert share((), 8, 1) == share((0, 1), 0, 1) == ()
    with pytest.raises(UserError, match="takes 8 GPUs, and there are 2"):
        share((0, 1), 8, 0)


def space(folder: Path, fault: str = "") -> str:
    path = folder / "side.yaml"
    path.write_text(SPACE.format(fault=fault), encoding="utf-8")
    return str(path)


def test_each_setting_is_measured_in_every_round(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    words = [space(tmp_path), "--runs", str(runs), "--seconds", "15"]
    assert main([*words, "--flag", "max-total-tokens=60000"]) == 0
    records = Store(runs / "side-side").records(requests=True)
    assert len(records) >= 6
    assert len(records) % 3 == 0
    steps = [record.trial.point.get("steps") for record in records]
    assert steps == [None, 3, 1] * (len(records) // 3)
    assert all(record.state is TrialState.COMPLETE for record in records)
    assert all(record.requests for record in records)
    assert servers_of("side") == []


def test_a_server_that_hangs_is_left_out_and_its_stacks_are_kept(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    # The first two requests are the probe's and the warm-up's.
    asked = space(tmp_path, "hang_serving=3@speculative-num-steps==3")
    assert main([asked, "--runs", str(runs), "--seconds", "15"]) == 1
    records = Store(runs / "side-side").records()
    failed = [record for record in records if record.failure is not None]
    assert [record.trial.point["steps"] for record in failed] == [3]
    assert [r.failure.kind for r in failed if r.failure] == [FailureClass.HANG]
    assert {r.trial.point.get("steps") for r in records if not r.failure} == {None, 1}
    assert "Thread" in (runs / "side-side" / "logs" / "000001.stacks").read_text()
    assert servers_of("side") == []
