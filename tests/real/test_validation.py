"""The preflight: what released SGLangs say of command lines, and of a study."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from sweeper.config import parse_study
from sweeper.engines.sglang_preflight import (
    CommandLine,
    Verdicts,
    installed_version,
    python_of,
    validate,
)
from sweeper.planning.plan import make_plan
from sweeper.planning.preflight import ask_engine
from tests.real.installed import DRAFT, MODEL, python

pytestmark = pytest.mark.sglang

DATA = Path(__file__).parents[1] / "data"
#: Refused by `check_server_args` only, which the matrix was made without.
CHECKED_LATER = {"EAGLE pp2", "EAGLE pp2 nooverlap", "tp8 nnodes3"}
#: Refused for what is on the machine, so that it says nothing of the setting.
ABOUT_MACHINE = {"draft missing"}


def cases() -> dict[str, tuple[str, ...]]:
    given = json.loads((DATA / "matrix_cases.json").read_text())
    return {
        name: tuple(DRAFT if word == "DRAFT" else word for word in words)
        for name, words in given.items()
    }


def ask(
    version: str,
    names: Sequence[str] = (),
    *,
    cache: Path | None = None,
    gpus_present: bool = True,
) -> Verdicts:
    lines = [
        CommandLine(argv=("--model-path", MODEL, "--device", "cuda", *words), env={})
        for name, words in cases().items()
        if not names or name in names
    ]
    return validate(
        (python(version),),
        version,
        lines,
        env={},
        gpus_present=gpus_present,
        cache=cache,
        cores=2,
    )


@pytest.mark.parametrize("version", ["0.5.15", "0.5.23"])
def test_validation_says_what_the_matrix_of_that_version_says(
    version: str, tmp_path: Path
) -> None:
    lines = (DATA / f"matrix_{version}.txt").read_text().splitlines()
    said = dict(line[1:].split("] ", 1) for line in lines if line.startswith("["))
    verdicts = ask(version, cache=tmp_path)
    assert (verdicts.problem, verdicts.unanswered) == ("", len(ABOUT_MACHINE))
    for index, name in enumerate(cases()):
        reason = verdicts.refused.get(index)
        if name in CHECKED_LATER:
            assert reason is not None, name
        elif name in ABOUT_MACHINE or said[name].startswith("OK"):
            assert reason is None, (name, reason)
        else:
            kind, _, text = said[name].removeprefix("RAISES ").partition(": ")
            assert reason is not None, name
            assert text in reason if text else kind == "AssertionError", (name, reason)
    again = ask(version, cache=tmp_path)
    assert again.asked == 0
    assert again.refused == verdicts.refused


def test_words_about_a_gpu_that_is_not_there_refuse_nothing() -> None:
    names = ["SA topk2 trtllm_mha", "SA flex"]
    assert ask("0.5.23", names).refused.keys() == {0, 1}
    assert ask("0.5.23", names, gpus_present=False).refused.keys() == {1}


@pytest.mark.parametrize("version", ["0.5.15", "0.5.23"])
def test_the_version_is_told_without_an_import(version: str) -> None:
    command = [python(version), "-m", "sglang.launch_server"]
    found = python_of(command)
    assert found == (command[0],)
    assert installed_version(found, {}) == version


def test_a_plan_loses_what_the_installed_sglang_refuses(tmp_path: Path) -> None:
    text = f"""\
study: asked
engine:
  kind: sglang
  command: [{python("0.5.23")}, -m, sglang.launch_server]
  model: {MODEL}
  gpus: 1
  flags: {{speculative-algorithm: EAGLE3, speculative-draft-model-path: {DRAFT},
    speculative-eagle-topk: 1, speculative-num-draft-tokens: 4, attention-backend: triton}}
parameters:
  steps: {{flag: speculative-num-steps, values: [2, 3]}}
  kv: {{flag: kv-cache-dtype, values: [auto, fp4_of_next_year]}}
known: [{{steps: 2, kv: fp4_of_next_year}}, {{steps: 3, kv: auto}}]
workloads: [{{name: single}}]
objectives: [{{maximize: output_tok_s}}]
"""
    study = parse_study(text, "asked.yaml")
    said: list[str] = []
    checked = ask_engine(
        study, make_plan(study), gpus_present=False, say=said.append, cache=tmp_path
    )
    assert checked.version == "0.5.23"
    assert [point["kv"] for point, _ in checked.plan.settings.values()] == ["auto", "auto"]
    assert [point["steps"] for point in checked.study.known] == [3]
    (reason,) = (r for r in checked.plan.refused if r.startswith("SGLang 0.5.23 refuses it"))
    assert "argument --kv-cache-dtype: invalid choice" in reason
    assert said == ["preflight: asking SGLang 0.5.23 about 5 settings"]
