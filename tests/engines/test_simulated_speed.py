"""Speeds over real HTTP: the clock is exact at any scale, and the history is met."""

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from sweeper.engines.simulated.calibrations import KIMI_LATER
from sweeper.engines.simulated.cost import Setting, request_s
from tests.engines.simulated_launch import Launched, generate_body, launch, shape

PROMPTS = {
    "code": "Write a Python program that sorts a file.",
    "maths": "Prove that the square root of two is irrational.",
    "chat": "What do you think of autumn?",
    "translation": "Translate into German: the sea is calm tonight.",
    "summary": "Summarise the following: it rained, then it stopped.",
}


def seconds(server: Launched, prompt: str, tokens: int, scale: float) -> tuple[float, float]:
    """Return engine seconds of an answer: by our clock, the best of three, and by the server's."""
    spans, server_s = [], 0.0
    for _ in range(3):
        assert server.request("POST", "/flush_cache?timeout=60")[0] == 200
        start = time.monotonic()
        meta = server.json("POST", "/generate", generate_body(prompt, tokens))["meta_info"]
        spans.append((time.monotonic() - start) * scale)
        server_s = meta["e2e_latency"]
    return min(spans), server_s


@pytest.mark.parametrize(("scale", "tokens"), [(1.0, 80), (10.0, 800)])
def test_the_cost_model_s_speed_is_measured_at_any_time_scale(
    tmp_path: Path, scale: float, tokens: int
) -> None:
    with launch(tmp_path, scale=scale) as server:
        measured, told = seconds(server, PROMPTS["chat"], tokens, scale)
    wanted = request_s(KIMI_LATER, Setting(), "chat", prompt_tokens=7, output_tokens=tokens)
    assert told == pytest.approx(wanted, rel=0.01)
    # A busy machine can add to real time; nothing can take from it.
    assert wanted * 0.99 < measured < wanted * 1.25


@pytest.mark.parametrize(
    ("flags", "env", "wanted"),
    [
        (shape(5, 1, 6), {}, 71.3),
        (shape(2, 1, 3), {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}, 94.0),
    ],
)
def test_the_history_is_measured_over_http(
    tmp_path: Path, flags: tuple[str, ...], env: Mapping[str, str], wanted: float
) -> None:
    with launch(tmp_path, *flags, env=env, scale=20.0) as server:
        spans = [seconds(server, prompt, 500, 20.0) for prompt in PROMPTS.values()]
    measured, told = (500 * len(PROMPTS) / sum(s) for s in zip(*spans, strict=True))
    assert told == pytest.approx(wanted, rel=0.03)
    assert wanted * 0.8 < measured < wanted * 1.03


def test_eagle_with_an_eagle3_draft_yields_one_token_a_step(tmp_path: Path) -> None:
    flags = [f.replace("EAGLE3", "EAGLE") for f in shape(3, 1, 4)]
    with launch(tmp_path, *flags) as server:
        meta = server.json("POST", "/generate", generate_body("Hello", 60))["meta_info"]
        assert meta["spec_verify_ct"] == 59
        assert meta["spec_num_correct_drafts"] == 0
        assert "accept len: 1.00, accept rate: 0.00" in server.log


def test_launches_differ_by_trial_and_not_by_chance(tmp_path: Path) -> None:
    def latency(trial: str) -> float:
        with launch(tmp_path, noise=1.0, env={"SWEEPER_TRIAL": trial}) as server:
            meta = server.json("POST", "/generate", generate_body("Hello", 20))["meta_info"]
            return float(meta["e2e_latency"])

    first, again, other = latency("7"), latency("7"), latency("8")
    assert first == pytest.approx(again, rel=1e-3)
    assert abs(first / other - 1) > 2e-3
