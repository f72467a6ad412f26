"""What TP size the draft gets, and what is refused, from values alone."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.draft_tp.plan import (
    STRICT,
    VARIABLE,
    Plan,
    Refused,
    check_architecture,
    decide,
    draft_architecture,
)


def settings(**more: object) -> dict[str, object]:
    return {
        "tp_size": 8,
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": "/models/draft",
        "nnodes": 1,
        "pp_size": 1,
        **more,
    }


def asked(size: object) -> dict[str, str]:
    return {VARIABLE: str(size)}


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3", "eagle3", "NEXTN"])
def test_a_divisor_of_the_targets_size_is_planned(size: int, algorithm: str) -> None:
    made = decide(asked(size), settings(speculative_algorithm=algorithm))
    assert made == Plan(target_size=8, draft_size=size)


@pytest.mark.parametrize(
    ("environ", "more"),
    [
        ({}, {}),
        ({VARIABLE: " "}, {}),
        ({VARIABLE: "8"}, {}),
        ({VARIABLE: "1"}, {"tp_size": 1}),
        ({VARIABLE: "1"}, {"tp_size": None}),
        ({VARIABLE: "1"}, {"speculative_algorithm": None}),
        ({VARIABLE: "1"}, {"speculative_algorithm": "NGRAM"}),
    ],
)
def test_nothing_is_planned_where_nothing_would_change(
    environ: dict[str, str], more: dict[str, object]
) -> None:
    assert decide(environ, settings(**more)) is None


@pytest.mark.parametrize("size", ["3", "16", "0", "-1", "one", "1.5"])
def test_a_size_that_divides_nothing_is_refused(size: str) -> None:
    with pytest.raises(Refused, match="must be 1 or a divisor of --tp-size 8"):
        decide(asked(size), settings())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"enable_dp_attention": True}, "--enable-dp-attention"),
        ({"attn_dp_size": 2}, "--attn-dp-size is 2"),
        ({"pp_size": 2}, "--pp-size is 2"),
        ({"nnodes": 2}, "--nnodes is 2"),
        ({"enable_multi_layer_eagle": True}, "--enable-multi-layer-eagle"),
        ({"speculative_adaptive": True}, "--speculative-adaptive"),
        ({"speculative_use_rejection_sampling": True}, "--speculative-use-rejection-sampling"),
        ({"speculative_use_block_verification": True}, "--speculative-use-block-verification"),
        ({"speculative_draft_model_path": None}, "--speculative-draft-model-path is not given"),
        ({"speculative_algorithm": "STANDALONE"}, "is STANDALONE, and must be one of EAGLE"),
        ({"speculative_algorithm": "DFLASH"}, "is DFLASH"),
        ({"speculative_algorithm": "DSPARK"}, "is DSPARK"),
        ({"speculative_algorithm": "UNO"}, "is UNO"),
        ({"speculative_algorithm": "FROZEN_KV_MTP"}, "is FROZEN_KV_MTP"),
        (
            {"speculative_algorithm": "EAGLE", "speculative_token_map": "/map.pt"},
            "--speculative-token-map",
        ),
    ],
)
def test_what_cannot_be_split_is_refused_with_the_flag(more: dict[str, object], said: str) -> None:
    with pytest.raises(Refused, match=said):
        decide(asked(1), settings(**more))
    assert decide({}, settings(**more)) is None


def test_a_token_map_that_eagle3_ignores_is_allowed() -> None:
    assert decide(asked(1), settings(speculative_token_map="/map.pt")) is not None


def test_strictness_is_asked_for_by_its_own_variable() -> None:
    made = decide({**asked(1), STRICT: "1"}, settings())
    assert made is not None
    assert made.strict


@given(st.integers(1, 6), st.integers(1, 6))
def test_groups_are_equal_parts_of_neighbours(groups: int, size: int) -> None:
    ranks = list(range(3, 3 + groups * size))
    parts = Plan(target_size=len(ranks), draft_size=size).partition(ranks)
    assert [rank for part in parts for rank in part] == ranks
    assert {len(part) for part in parts} == {size}


def test_the_architecture_is_read_from_a_local_checkpoint(tmp_path: Path) -> None:
    assert draft_architecture(None) is None
    assert draft_architecture(str(tmp_path)) is None
    (tmp_path / "config.json").write_text("[]")
    assert draft_architecture(str(tmp_path)) is None
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Llama"]}))
    assert draft_architecture(str(tmp_path)) == "Llama"


@pytest.mark.parametrize("name", [None, "LlamaForCausalLMEagle3", "LlamaForCausalLMEagle"])
def test_llama_drafts_and_unknown_ones_are_let_through(name: str | None) -> None:
    check_architecture(name)


@pytest.mark.parametrize("name", ["Eagle3DeepseekV2ForCausalLM", "Qwen2ForCausalLMEagle"])
def test_other_drafts_are_refused(name: str) -> None:
    with pytest.raises(Refused, match=name):
        check_architecture(name)
