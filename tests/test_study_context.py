"""Which rows are comparable: the hash of a study's workloads."""

from pathlib import Path

from sweeper.config import load_study

SPACE = """\
study: moved
engine: {kind: simulated, model: /models/target, gpus: 1}
parameters:
  steps: {flag: speculative-num-steps, values: [1, 2]}
workloads: [{name: single, prompts: mine.jsonl}]
objectives: [{maximize: output_tok_s}]
"""
PROMPTS = '{"prompt": "Why is the sky blue?"}\n'


def context(folder: Path, prompts: str = PROMPTS) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "mine.jsonl").write_text(prompts, encoding="utf-8")
    path = folder / "moved.yaml"
    path.write_text(SPACE, encoding="utf-8")
    return load_study(path).context


def test_a_study_that_is_moved_keeps_its_rows(tmp_path: Path) -> None:
    assert context(tmp_path / "here") == context(tmp_path / "there")


def test_other_prompts_in_the_same_file_are_another_workload(tmp_path: Path) -> None:
    before = context(tmp_path / "here")
    assert context(tmp_path / "here", PROMPTS.replace("blue", "red")) != before
