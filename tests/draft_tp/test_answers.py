"""Released SGLang with EAGLE-3 on two CPU ranks: the same answers whichever way the draft is split."""

import json
import os
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sweeper.clock import Clock
from sweeper.engines.sglang import SGLang
from sweeper.errors import LaunchFailed
from sweeper.records import Launch, Limits
from sweeper.serving import NoGpus, Place, start
from tests.real.installed import CPU_FLAGS, FOLDER, python
from tests.serving.watching import marked, wait_for
from tests.wheel import install

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(900)]

ENGINE = SGLang()
LIMITS = Limits(start_s=400, silence_s=300, stop_s=60, memory_free_s=60, progress_s=90, probe_s=60)
MODELS = FOLDER / "models" / "eagle3"
PROMPTS = ([7, 30, 44], [100, 101, 5, 77], [3, 4, 5, 6, 7, 8, 9], [400], [222, 333, 444, 11])
TOKENS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    tokens: list[list[int]]
    accept_length: float
    info: dict[str, Any]
    log: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("answers"))


def launch(version: str, site: Path | str, **environ: str) -> Launch:
    return Launch(
        engine="sglang",
        command=("nice", "-n", "10", python(version), "-m", "sglang.launch_server"),
        model=str(MODELS / "target"),
        gpus=0,
        flags={
            **CPU_FLAGS,
            "tp-size": 2,
            "dtype": "float32",
            "max-running-requests": 8,
            "skip-tokenizer-init": True,
            "speculative-algorithm": "EAGLE3",
            "speculative-draft-model-path": str(MODELS / "draft"),
            "speculative-num-steps": 3,
            "speculative-eagle-topk": 1,
            "speculative-num-draft-tokens": 4,
        },
        env={
            "SGLANG_CPU_OMP_THREADS_BIND": "0|0",
            "SWEEPER_TEST_PATH": str(site),
            **environ,
        },
    )


def answers(asked: Launch, folder: Path) -> Answers:
    """Serve, ask each prompt greedily, and stop."""
    folder.mkdir()
    mark = f"draft-tp-{folder.name}-{os.getpid()}"
    place = Place(gpu_ids=(), log_path=folder / "server.log", mark=mark)
    server = start(ENGINE, asked, place=place, gpus=NoGpus(), limits=LIMITS, clock=Clock())
    try:
        said = [ask(server.url, prompt) for prompt in PROMPTS]
        with urllib.request.urlopen(f"{server.url}/server_info", timeout=60) as reply:
            info = json.load(reply)
    finally:
        server.stop()
        assert wait_for(lambda: not marked(mark)), "something of the server lives"
    steps = sum(one["meta_info"]["spec_verify_ct"] for one in said)
    return Answers(
        tokens=[one["output_ids"] for one in said],
        accept_length=len(PROMPTS) * TOKENS / steps,
        info=info,
        log=(folder / "server.log").read_text(errors="replace"),
    )


def ask(url: str, prompt: list[int]) -> dict[str, Any]:
    sampling = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    body = json.dumps({"input_ids": prompt, "sampling_params": sampling}).encode()
    request = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


@pytest.fixture(scope="module", params=[pytest.param("0.5.17", marks=pytest.mark.long), "0.5.23"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def shared(version: str, site: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return answers(launch(version, site), tmp_path_factory.mktemp("draft") / "shared")


def test_a_draft_that_runs_alone_gives_the_same_answers(
    version: str, shared: Answers, site: Path, tmp_path: Path
) -> None:
    alone = answers(launch(version, site, SWEEPER_DRAFT_TP="1"), tmp_path / "alone")
    assert "draft_tp_size" not in shared.info
    assert alone.info["draft_tp_size"] == 1
    (state,) = alone.info["internal_states"]
    assert state["draft_tp_rounds"] >= len(PROMPTS)
    assert state["draft_tp_corrected_rounds"] == 0
    for rank in (0, 1):
        assert f"rank {rank} of the target's 2 drafts at TP 1 with ranks [{rank}]" in alone.log
    assert all(len(tokens) == TOKENS for tokens in shared.tokens)
    assert alone.tokens == shared.tokens
    assert shared.accept_length > 1.3
    assert alone.accept_length == pytest.approx(shared.accept_length, rel=0.01)


#: Python runs this before all else in each process of the server.
RANK_1_DRAFTS_WRONGLY = """
import sweeper.draft_tp.agreement as agreement

honest = agreement.Agreement.settle

def settle(self, lengths, last_tokens, parents, order, tokens):
    from torch import distributed

    wrong = (tokens + 1) % 400 if distributed.get_rank() == 1 else tokens
    return honest(self, lengths, last_tokens, parents, order, wrong)

agreement.Agreement.settle = settle
"""


@pytest.fixture
def faulty_site(site: Path, tmp_path: Path) -> str:
    (tmp_path / "sitecustomize.py").write_text(RANK_1_DRAFTS_WRONGLY)
    return f"{tmp_path}:{site}"


def test_a_rank_that_drafts_otherwise_verifies_what_rank_0_drafted(
    version: str, shared: Answers, faulty_site: str, tmp_path: Path
) -> None:
    asked = launch(version, faulty_site, SWEEPER_DRAFT_TP="1")
    corrected = answers(asked, tmp_path / "corrected")
    assert corrected.tokens == shared.tokens
    assert corrected.accept_length == pytest.approx(shared.accept_length, rel=0.01)
    (state,) = corrected.info["internal_states"]
    assert state["draft_tp_corrected_rounds"] == state["draft_tp_rounds"] > 0


def test_where_that_is_an_error_the_server_ends_and_does_not_hang(
    faulty_site: str, tmp_path: Path
) -> None:
    strict = {"SWEEPER_DRAFT_TP": "1", "SWEEPER_DRAFT_TP_STRICT": "1"}
    with pytest.raises(LaunchFailed):
        answers(launch("0.5.23", faulty_site, **strict), tmp_path / "strict")
    log = (tmp_path / "strict" / "server.log").read_text(errors="replace")
    assert "in round 1 the ranks [1] drafted other tokens than rank 0" in log


def test_a_server_whose_sglang_lacks_the_plugin_is_no_row(site: Path, tmp_path: Path) -> None:
    # SGLang's own switch for plugins: only those that are named are loaded.
    asked = launch("0.5.23", site, SWEEPER_DRAFT_TP="1", SGLANG_PLUGINS="another")
    with pytest.raises(LaunchFailed) as caught:
        answers(asked, tmp_path / "without")
    assert "does not report draft_tp_size" in caught.value.failure.line
