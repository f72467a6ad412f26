"""What the SGLang adapter makes of SWEEPER_DRAFT_TP: refusals before a launch, and the read-back."""

import json
from pathlib import Path
from typing import Any

import pytest

from sweeper.engines.sglang import SGLang
from sweeper.errors import FailureClass, LaunchFailed
from sweeper.records import FlagValue, Launch

ENGINE = SGLang()
FLAGS: dict[str, FlagValue] = {
    "tp-size": 4,
    "speculative-algorithm": "EAGLE3",
    "speculative-draft-model-path": "/models/draft",
}


def launch(size: FlagValue = "1", **more: FlagValue) -> Launch:
    flags = {**FLAGS, **{name.replace("_", "-"): value for name, value in more.items()}}
    return Launch(
        engine="sglang",
        command=("python", "-m", "sglang.launch_server"),
        model="/models/target",
        gpus=4,
        flags=flags,
        env={"SWEEPER_DRAFT_TP": str(size)},
    )


@pytest.mark.parametrize("size", ["1", "2"])
def test_a_size_that_can_be_is_launched_with_its_variable(size: str) -> None:
    asked = ENGINE.canonical(launch(size))
    assert ENGINE.refuse(asked) is None
    assert asked.env["SWEEPER_DRAFT_TP"] == size


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"speculative_algorithm": "STANDALONE"}, "STANDALONE"),
        ({"speculative_algorithm": "DFLASH"}, "DFLASH"),
        ({"enable_dp_attention": True, "dp_size": 2}, "--enable-dp-attention"),
        ({"attn_dp_size": 2}, "--attn-dp-size"),
        ({"enable_multi_layer_eagle": True}, "--enable-multi-layer-eagle"),
        ({"nnodes": 2}, "--nnodes"),
        ({"pp_size": 2, "tp_size": 2}, "--pp-size"),
    ],
)
def test_what_the_plugin_would_refuse_is_refused_before_a_launch(
    more: dict[str, FlagValue], said: str
) -> None:
    why = ENGINE.refuse(launch(**more))
    assert why is not None
    assert said in why
    assert "\n" not in why


def test_a_local_draft_of_another_type_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}))
    why = ENGINE.refuse(launch(speculative_draft_model_path=str(tmp_path)))
    assert why is not None
    assert "Eagle3DeepseekV2ForCausalLM" in why
    config.write_text(json.dumps({"architectures": ["LlamaForCausalLMEagle3"]}))
    assert ENGINE.refuse(launch(speculative_draft_model_path=str(tmp_path))) is None


def answer(**said: object) -> dict[str, Any]:
    return {"model_path": "/models/target", "port": 7, "version": "0.5.23", "tp_size": 4, **said}


@pytest.mark.parametrize(
    "said", [{"draft_tp_size": 1}, {"internal_states": [{"draft_tp_size": 1}]}]
)
def test_the_size_of_the_built_draft_is_accepted(said: dict[str, object]) -> None:
    assert ENGINE.read_back(launch(), answer(**said), port=7).version == "0.5.23"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, "is sweeper installed beside its SGLang?"),
        ({"draft_tp_size": 4}, "reports draft_tp_size 4"),
        ({"internal_states": [{"draft_tp_size": 2}]}, "reports draft_tp_size 2"),
    ],
)
def test_any_other_answer_is_a_failure(said: dict[str, object], words: str) -> None:
    with pytest.raises(LaunchFailed) as caught:
        ENGINE.read_back(launch(), answer(**said), port=7)
    assert caught.value.failure.kind is FailureClass.CONFIG_REJECTED
    assert words in caught.value.failure.line
