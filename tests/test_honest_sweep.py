"""The main command where settings write rubbish, are confirmed, or are stopped early."""

from pathlib import Path

import pytest

from sweeper.errors import FailureClass
from sweeper.records import Purpose, TrialRecord, TrialState
from sweeper.store import Store
from tests.test_search import TINY, run


def swept(tmp_path: Path, text: str) -> tuple[list[TrialRecord], str]:
    (tmp_path / "tiny.yaml").write_text(text, encoding="utf-8")
    done = run(tmp_path, "tiny.yaml")
    assert done.returncode == 0, done.stderr
    return Store(tmp_path / "runs" / "tiny").records(), done.stdout


@pytest.mark.slow
def test_finalists_and_baseline_are_launched_again_with_other_prompts(tmp_path: Path) -> None:
    text = TINY.replace("{launches: 6}", "{launches: 9, confirm: 4}")
    records, shown = swept(tmp_path, text)
    confirmed = [r for r in records if r.trial.purpose is Purpose.CONFIRM]
    assert len(confirmed) == 4
    assert sum(not r.trial.point for r in confirmed) == 2
    assert [r.trial.purpose for r in records[-4:]] == [Purpose.CONFIRM] * 4
    requests = {
        r.trial.number: Store(tmp_path / "runs/tiny").requests_of(r.trial.number) for r in records
    }
    base, again = records[0], next(r for r in confirmed if not r.trial.point)
    texts = [{q.text for q in requests[r.trial.number]} for r in (base, again)]
    assert texts[0].isdisjoint(texts[1])
    assert all(
        m.answers_equal_share == 1.0 for r in records if r.trial.point for m in r.measurements
    )
    assert "answers equal the baseline's" in shown


@pytest.mark.slow
def test_a_fast_setting_that_writes_rubbish_cannot_win(tmp_path: Path) -> None:
    fault = "fault: 'degenerate@NCCL_PROTO==LL&speculative-num-steps==2', noise"
    records, _ = swept(tmp_path, TINY.replace("noise", fault))
    broken = [r for r in records if r.state is TrialState.INFEASIBLE]
    assert [r.trial.point["nccl"] for r in broken] == ["ring-ll"]
    failure = broken[0].failure
    assert failure is not None
    assert failure.kind is FailureClass.OUTPUT_DEGENERATE
    assert "broken where the baseline's are not" in failure.line
    assert broken[0].measurements[0].output_tok_s
    assert broken[0].measurements[0].degenerate_share == 1.0
    best = (tmp_path / "runs/tiny/best.sh").read_text()
    assert not ("NCCL_PROTO=LL" in best and "--speculative-num-steps 2" in best)


@pytest.mark.slow
def test_a_certainly_slower_setting_skips_its_other_passes_and_keeps_what_it_measured(
    tmp_path: Path,
) -> None:
    text = TINY.replace("max_tokens: 120", "max_tokens: 60, repeats: 4")
    text = text.replace("{launches: 6}", "{launches: 6, prune_confidence: 0.99}")
    text = text.replace("values: [2, 4]", "values: [2, 8]").replace("known: [{steps: 4}]\n", "")
    records, _ = swept(tmp_path, text)
    pruned = [r for r in records if r.state is TrialState.PRUNED]
    assert pruned
    assert 8 in {r.trial.point["steps"] for r in pruned}
    best = max(records, key=lambda r: r.measurements[0].output_tok_s or 0.0)
    assert best.state is TrialState.COMPLETE
    assert all(len(r.measurements[0].repeats_tok_s) < 4 for r in pruned)
    assert len(records[0].measurements[0].repeats_tok_s) == 4


@pytest.mark.slow
def test_the_workload_that_decides_is_sent_first_where_it_may_spare_the_others(
    tmp_path: Path,
) -> None:
    text = TINY.replace(
        "workloads: [", "workloads: [{name: other, concurrency: 2, max_tokens: 20, warmup: 0}, "
    )
    text = text.replace("{maximize: output_tok_s}", "{maximize: output_tok_s, workload: single}")
    text = text.replace("{launches: 6}", "{launches: 6, prune_confidence: 0.99}")
    text = text.replace("values: [2, 4]", "values: [2, 8]").replace("known: [{steps: 4}]\n", "")
    text = text.replace("max_tokens: 120", "max_tokens: 60, repeats: 4")
    records, _ = swept(tmp_path, text)
    assert [m.workload for m in records[0].measurements] == ["other", "single"]
    pruned = [r for r in records if r.state is TrialState.PRUNED]
    assert pruned
    assert {m.workload for r in pruned for m in r.measurements} == {"single"}


@pytest.mark.slow
def test_the_log_tells_how_much_ran_without_a_graph(tmp_path: Path) -> None:
    text = TINY.replace(
        "nccl:\n    choices:\n      default: {}\n      ring-ll: {env: {NCCL_ALGO: Ring, NCCL_PROTO: LL}}",
        "graph: {choices: {on: {}, off: {flags: {disable-cuda-graph: true}}}}",
    )
    records, _ = swept(tmp_path, text)
    shares = {r.trial.point.get("graph"): r.measurements[0].no_graph_share for r in records}
    assert shares["on"] == 0.0
    assert shares["off"] == 1.0
    assert all(r.measurements[0].retractions == 0 for r in records)
