"""SGLang's command line: usage errors, silent rewrites, refusals."""

from collections.abc import Mapping
from typing import Any

import pytest

from sweeper.engines.simulated.calibrations import KIMI_LATER, SMALL
from sweeper.engines.simulated.faults import active_faults, parse_faults
from sweeper.engines.simulated.flags import parse
from sweeper.engines.simulated.log import server_args_line
from sweeper.engines.simulated.resolve import Rejected, Resolved, resolve
from sweeper.engines.simulated.setting import setting_of, tree_limit
from sweeper.engines.simulated.settings import read_settings
from tests.engines.simulated_launch import run

SPEC = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/models/d"]


def resolved(*words: str, llama: bool = False) -> Resolved:
    return resolve(parse(["--model-path", "/models/m", *words]), SMALL if llama else KIMI_LATER)


def shape_of(flags: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(
        flags[f"speculative_{name}"]
        for name in ("algorithm", "num_steps", "eagle_topk", "num_draft_tokens")
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["--cuda-graph-max-bs", "4"], "ambiguous option: --cuda-graph-max-bs could match"),
        (["--pp", "2"], "ambiguous option: --pp could match"),
        (["--speculative-draft-tp-size", "1"], "unrecognized arguments"),
        (["--tp-size", "x"], "argument --tp-size/--tensor-parallel-size: invalid int value: 'x'"),
        (["--attention-backend", "abacus"], "argument --attention-backend: invalid choice"),
        (["--cuda-graph-backend-decode", "tc_piecewise"], "tc_piecewise was removed"),
        (["--config", "a.yaml"], "not read by the simulated server"),
    ],
)
def test_a_usage_error_is_argparse_s_and_ends_with_two(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        parse(["--model-path", "/models/m", *words])
    assert ending.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("sglang serve: error: ")
    assert message in last


def test_a_server_without_a_model_ends_with_two() -> None:
    status, error = run([])
    assert status == 2
    assert "the following arguments are required: --model-path" in error


def test_a_malformed_variable_of_its_own_is_named() -> None:
    status, error = run(["--model-path", "m"], {"SWEEPER_SIM_FAULT": "gremlins"})
    assert status == 64
    assert "gremlins" in error


@pytest.mark.parametrize(
    "words",
    [
        ["--tp", "8"],
        ["--tensor-parallel-size", "8"],
        ["--tp-size=8"],
        ["--tensor-parallel", "8"],
    ],
)
def test_abbreviations_and_aliases_are_taken(words: list[str]) -> None:
    assert resolved(*words).flags["tp_size"] == 8


def test_the_model_may_come_first_as_after_sglang_serve() -> None:
    assert parse(["serve", "/models/m"])["model_path"] == "/models/m"


@pytest.mark.parametrize(
    ("words", "llama", "wanted"),
    [
        ([], False, ("EAGLE3", 3, 1, 4)),
        ([], True, ("EAGLE3", 5, 4, 8)),
        (["--speculative-algorithm", "nextn"], True, ("EAGLE", 5, 4, 8)),
        (["--speculative-algorithm", "STANDALONE"], True, ("STANDALONE", 3, 1, 4)),
        (["--speculative-algorithm", "NGRAM"], True, ("NGRAM", 1, 10, 12)),
        (
            ["--speculative-num-steps=2", "--speculative-eagle-topk=1",
             "--speculative-num-draft-tokens=16"],
            False,
            ("EAGLE3", 2, 1, 3),
        ),
        (["--speculative-num-steps=3", "--speculative-eagle-topk=1"], False, ("EAGLE3", 3, 1, 4)),
        (
            ["--speculative-num-steps=3", "--speculative-eagle-topk=4",
             "--speculative-num-draft-tokens=16"],
            False,
            ("EAGLE3", 3, 4, 16),
        ),
    ],
)  # fmt: skip
def test_speculation_is_rewritten_as_sglang_does(
    words: list[str], llama: bool, wanted: tuple[Any, ...]
) -> None:
    assert shape_of(resolved(*SPEC, *words, llama=llama).flags) == wanted


def test_rewrites_are_warned_of_in_sglang_s_words() -> None:
    warnings = resolved(
        *SPEC, "--speculative-num-steps=2", "--speculative-eagle-topk=1",
        "--speculative-num-draft-tokens=8",
    ).warnings  # fmt: skip
    assert any(w.startswith("Max running requests is reset to 48") for w in warnings)
    assert any("adjusted to speculative_num_steps + 1" in w for w in warnings)


def test_the_baseline_has_no_cap_of_running_requests() -> None:
    assert resolved().flags["max_running_requests"] is None
    assert resolved(*SPEC).flags["max_running_requests"] == 48
    assert resolved(*SPEC, "--max-running-requests=16").flags["max_running_requests"] == 16


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--speculative-num-steps=3"], "TypeError: '>' not supported between instances"),
        (["--speculative-eagle-topk=2"], "AssertionError"),
        (["--speculative-num-draft-tokens=4"], "AssertionError"),
        (["--speculative-algorithm=BOGUS"], "Unknown speculative algorithm name: BOGUS"),
        (["--attention-backend=flex_attention"], "not supported with Flex Attention backend"),
        (
            ["--speculative-num-steps=3", "--speculative-eagle-topk=2",
             "--speculative-num-draft-tokens=4", "--page-size=64",
             "--attention-backend=flashmla"],
            "only supported on ('flashinfer', 'fa3', 'triton'); got attention_backend='flashmla'",
        ),
        (
            ["--speculative-num-steps=3", "--speculative-eagle-topk=2",
             "--speculative-num-draft-tokens=4", "--attention-backend=trtllm_mha"],
            "trtllm_mha backend only supports topk = 1",
        ),
        (["--speculative-adaptive", "--speculative-num-steps=2", "--speculative-eagle-topk=1"],
         "candidate_steps [0, 1, 3, 5, 7]"),
        (["--speculative-draft-window-size=0"], "must be positive, got 0."),
        (["--tp-size=4", "--pp-size=2", "--nnodes=3"], "must be divisible by number of nodes"),
        (["--tp-size=8", "--nnodes=3"], "tp_size must be divisible by number of nodes"),
        (["--speculative-algorithm=STANDALONE", "--enable-dp-attention"],
         "Currently standalone speculative decoding does not support dp attention."),
    ],
)  # fmt: skip
def test_a_refused_combination_says_what_sglang_says(words: list[str], error: str) -> None:
    with pytest.raises(Rejected) as refused:
        resolved(*SPEC, *words)
    assert error in str(refused.value)


def test_a_refused_combination_ends_with_one_and_a_traceback() -> None:
    status, error = run(["--model-path", "m", *SPEC, "--speculative-num-draft-tokens=4"])
    assert status == 1
    assert "SIMULATED" in error.splitlines()[0]
    assert "\nAssertionError\n" in error
    assert "Traceback (most recent call last):" in error


def test_graphs_are_captured_for_the_running_requests_only() -> None:
    assert resolved(*SPEC).graph_sizes[-1] == 48
    assert resolved().graph_sizes[-1] == 256
    assert resolved("--cuda-graph-bs-decode", "1", "2", "4").graph_sizes == (1, 2, 4)
    assert not resolved("--disable-cuda-graph").decode_graphs
    assert resolved("--disable-prefill-cuda-graph").decode_graphs


def test_the_speed_depends_on_flags_and_environment() -> None:
    environ = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL", "SWEEPER_DRAFT_TP": "1"}
    setting = setting_of(resolved(*SPEC, "--disable-cuda-graph"), environ)
    assert setting.nccl.algo == "RING"
    assert setting.nccl.proto == "LL"
    assert setting.draft_tp == 1
    assert not setting.graphs
    assert setting.draft == "ours"


@pytest.mark.parametrize(
    ("path", "curve"),
    [("/models/AQ-MedAI-eagle3", "aq-medai"), ("/m/Wrong-Layers", "wrong-layers"), ("x", "ours")],
)
def test_the_draft_s_path_names_its_quality(path: str, curve: str) -> None:
    words = ["--speculative-algorithm=EAGLE3", f"--speculative-draft-model-path={path}"]
    assert setting_of(resolved(*words), {}).draft == curve


def test_the_tree_limit_counts_the_root() -> None:
    assert tree_limit(1, 4) == 5
    assert tree_limit(3, 2) == 11


def test_a_key_never_reaches_the_log() -> None:
    line = server_args_line(resolved("--api-key", "hush").flags)
    assert "hush" not in line
    assert "'api_key': '***'" in line


@pytest.mark.parametrize(
    ("text", "steps", "strikes"),
    [
        ("oom_graph", "1", True),
        ("oom_graph@speculative-num-steps>=5", "5", True),
        ("oom_graph@speculative-num-steps>=5", "4", False),
        ("oom_graph@speculative-num-steps==4&NCCL_ALGO==ring", "4", True),
        ("oom_graph@NCCL_ALGO!=Ring", "4", False),
        ("oom_graph@context-length>5", "4", False),
    ],
)
def test_a_fault_strikes_where_its_conditions_hold(text: str, steps: str, strikes: bool) -> None:
    flags = resolved(*SPEC, f"--speculative-num-steps={steps}", "--speculative-eagle-topk=1").flags
    active = active_faults(parse_faults(text), flags, {"NCCL_ALGO": "Ring"})
    assert ("oom_graph" in active) is strikes


@pytest.mark.parametrize(
    "environ",
    [
        {"SWEEPER_SIM_FAULT": "nonsense"},
        {"SWEEPER_SIM_FAULT": "oom_graph@steps"},
        {"SWEEPER_SIM_FAULT": "killed=soon"},
        {"SWEEPER_SIM_CALIBRATION": "nonsense"},
        {"SWEEPER_SIM_TIME_SCALE": "0"},
        {"SWEEPER_SIM_NOISE": "-1"},
        {"SWEEPER_SIM_DRIFT": "0.01/h"},
    ],
)
def test_a_malformed_variable_is_refused_by_its_name(environ: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(environ))):
        read_settings(environ)


def test_drift_has_two_forms() -> None:
    assert read_settings({"SWEEPER_SIM_DRIFT": "0.02"}).drift.amplitude == 0.02
    linear = read_settings({"SWEEPER_SIM_DRIFT": "0.01/h@1790000000"}).drift
    assert (linear.per_hour, linear.origin_unix_s) == (0.01, 1790000000.0)
