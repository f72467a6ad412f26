"""Command line, canonical form, refusals and read-back of the SGLang engine."""

import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.engines import sglang_flags
from sweeper.engines.base import Engine
from sweeper.engines.sglang import SGLang
from sweeper.engines.sglang_rewrites import REWRITES
from sweeper.engines.sglang_rules import REFUSALS
from sweeper.errors import FailureClass, LaunchFailed
from sweeper.records import FlagValue, Launch

DATA = Path(__file__).parent.parent / "data"
ENGINE: Engine = SGLang()

STEPS, TOPK, DRAFT = (
    "speculative-num-steps",
    "speculative-eagle-topk",
    "speculative-num-draft-tokens",
)


def launch(
    flags: Mapping[str, FlagValue] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    model: str = "/models/target",
    gpus: int = 0,
) -> Launch:
    return Launch(
        engine="sglang",
        command=("python", "-m", "sglang.launch_server"),
        model=model,
        gpus=gpus,
        flags=flags or {},
        env=env or {},
    )


def drafting(
    steps: FlagValue = 3, topk: FlagValue = 1, draft: FlagValue = 4, **more: FlagValue
) -> dict[str, FlagValue]:
    flags: dict[str, FlagValue] = {
        "speculative-algorithm": "EAGLE3",
        "speculative-draft-model-path": "/models/draft",
        STEPS: steps,
        TOPK: topk,
        DRAFT: draft,
    }
    return flags | {name.replace("_", "-"): value for name, value in more.items()}


def key(flags: Mapping[str, FlagValue], **env: str) -> str:
    return ENGINE.canonical(launch(flags, env=env)).key


# --- the command line ---------------------------------------------------------------------------


def test_the_command_line_ends_with_what_sweeper_decides() -> None:
    words = ENGINE.argv(launch({"tp-size": 2, "disable-cuda-graph": True}), port=7, nccl_port=8)
    assert words == [
        *("python", "-m", "sglang.launch_server", "--model-path", "/models/target"),
        *("--disable-cuda-graph", "--enable-metrics"),
        *("--tp-size", "2", "--host", "127.0.0.1", "--port", "7", "--nccl-port", "8"),
    ]


def test_what_the_user_sets_is_not_set_again() -> None:
    flags: dict[str, FlagValue] = {
        "nccl-port": 9,
        "decode_log_interval": 10,
        "enable-metrics": False,
    }
    words = ENGINE.argv(launch(flags), port=7, nccl_port=8)
    assert words.count("--nccl-port") == 1
    assert words[words.index("--nccl-port") + 1] == "9"
    assert words[words.index("--decode-log-interval") + 1] == "10"
    assert "--enable-metrics" not in words


def test_what_measuring_sets_anyway_is_no_part_of_a_setting() -> None:
    made = ENGINE.canonical(launch({"decode-log-interval": "10", "enable-metrics": False}))
    assert made.flags == {"decode-log-interval": 10, "enable-metrics": False}
    assert (
        ENGINE.canonical(launch({"decode-log-interval": 40, "enable-metrics": True})).flags == {}
    )


def test_the_launchs_environment_wins() -> None:
    env = ENGINE.environment(launch(env={"SGLANG_PYSPY_DUMP_BEFORE_CRASH": "1", "A": "b"}))
    assert env["SGLANG_PYSPY_DUMP_BEFORE_CRASH"] == "1"
    assert env["SGLANG_CUDA_COREDUMP_BEFORE_CRASH"] == "0"
    assert env["A"] == "b"


@pytest.mark.parametrize(
    ("model", "draft", "offline"),
    [
        ("/models/target", "/models/draft", True),
        ("./target", None, True),
        ("org/target", None, False),
        ("/models/target", "org/draft", False),
    ],
)
def test_only_models_on_disk_keep_the_hub_out(
    model: str, draft: str | None, offline: bool
) -> None:
    flags: dict[str, FlagValue] = {"speculative-draft-model-path": draft} if draft else {}
    env = ENGINE.environment(launch(flags, model=model))
    assert (env.get("HF_HUB_OFFLINE") == "1") == offline


@pytest.mark.parametrize(
    "flag",
    [
        {"speculative-token-map": "org/name/freq_32768.pt"},
        {"tokenizer-path": "org/tokenizer"},
        {"lora-paths": ("a=org/lora",)},
    ],
)
def test_whatever_a_flag_names_on_a_hub_may_be_fetched(flag: dict[str, FlagValue]) -> None:
    assert "HF_HUB_OFFLINE" not in ENGINE.environment(launch(drafting() | flag))


def test_probes_are_real_requests() -> None:
    ready = ENGINE.ready_probe()
    assert (ready.method, ready.path) == ("POST", "/generate")
    assert ready.json is not None
    assert "stream" not in ready.json
    assert (ENGINE.health_probe().method, ENGINE.health_probe().path) == ("GET", "/health")
    assert ENGINE.info_probe().path == "/server_info"
    assert ENGINE.flush_request().path == "/flush_cache"
    assert ENGINE.abort_request().json == {"abort_all": True}
    assert ENGINE.stop_signal() in {signal.SIGINT, signal.SIGTERM}


# --- the canonical form -------------------------------------------------------------------------

SAME: list[tuple[Mapping[str, FlagValue], Mapping[str, FlagValue]]] = [
    ({"tensor-parallel-size": 8}, {"tp-size": 8}),
    ({"tp": "8"}, {"tp_size": 8}),
    ({"tp-size": 1}, {}),
    ({"disable-cuda-graph": False}, {}),
    ({"disable-cuda-graph": "true"}, {"disable-cuda-graph": True}),
    ({"mem-fraction-static": "0.85"}, {"mem-fraction-static": 0.85}),
    ({"cuda-graph-bs-decode": 4}, {"cuda-graph-bs-decode": (4,)}),
    ({"cuda-graph-max-bs": 4}, {"cuda-graph-max-bs-decode": 4}),
    ({"speculative-draft-model-path": "/d"}, {}),
    ({"speculative-num-steps": 3, "speculative-eagle-topk": 2}, {}),
    (drafting(draft=8), drafting(draft=4)),
    (drafting(draft=16), drafting(draft=5)),
    (drafting(speculative_algorithm="eagle3"), drafting()),
    (drafting(speculative_algorithm="NEXTN"), drafting(speculative_algorithm="EAGLE")),
    (
        {"speculative-algorithm": "NGRAM", "speculative-eagle-topk": 4},
        {"speculative-algorithm": "ngram"},
    ),
    (drafting(speculative_accept_threshold_single=1.0), drafting()),
    ({"schedule-policy": "fcfs"}, {}),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_settings_that_the_engine_makes_equal_are_one_launch(
    one: Mapping[str, FlagValue], other: Mapping[str, FlagValue]
) -> None:
    assert key(one) == key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (drafting(), drafting(steps=2, draft=3)),
        (drafting(topk=2, draft=4), drafting(topk=2, draft=5)),
        (drafting(), drafting(speculative_algorithm="EAGLE")),
        ({"mem-fraction-static": 0.8}, {"mem-fraction-static": 0.85}),
        ({"disable-cuda-graph": True}, {}),
        ({"page-size": 1}, {}),
    ],
)
def test_settings_that_differ_stay_apart(
    one: Mapping[str, FlagValue], other: Mapping[str, FlagValue]
) -> None:
    assert key(one) != key(other)


def test_a_draft_tp_that_changes_nothing_is_dropped() -> None:
    eight = drafting(tp_size=8)
    assert key(eight, SWEEPER_DRAFT_TP="8") == key(eight)
    assert key({"tp-size": 8}, SWEEPER_DRAFT_TP="1") == key({"tp-size": 8})
    assert key(drafting(), SWEEPER_DRAFT_TP="1") == key(drafting())
    assert key(eight, SWEEPER_DRAFT_TP="1") != key(eight)
    assert key(eight, SWEEPER_DRAFT_TP="01") == key(eight, SWEEPER_DRAFT_TP="1")


def test_environment_that_sglang_sets_itself_is_dropped() -> None:
    assert key({}, CUDA_DEVICE_MAX_CONNECTIONS="1") == key({})
    assert key({}, SGLANG_PYSPY_DUMP_BEFORE_CRASH="0") == key({})
    assert key({"enable-symm-mem": True}, NCCL_CUMEM_ENABLE="0") == key({"enable-symm-mem": True})
    assert key({}, NCCL_ALGO="Ring") != key({})


def test_a_flag_set_twice_is_left_for_the_refusal() -> None:
    twice = ENGINE.canonical(launch({"tp": 2, "tp-size": 4}))
    why = ENGINE.refuse(twice)
    assert why is not None
    assert "tp" in why
    assert ENGINE.refuse(launch({"tp": 4, "tp-size": 4})) is None


NAMES = [
    *("tp-size", "tp", "tensor-parallel-size", "dp_size", "pp-size", "nnodes", "page-size"),
    *("speculative-algorithm", "speculative-draft-model-path", STEPS, TOPK, DRAFT),
    *("speculative-use-rejection-sampling", "speculative-adaptive", "attention-backend"),
    *("mem-fraction-static", "max-running-requests", "disable-cuda-graph", "enable-symm-mem"),
    *("cuda-graph-bs-decode", "enable-metrics", "decode-log-interval", "no-such-flag"),
    *("enable-deterministic-inference", "speculative-ngram-max-bfs-breadth"),
]
VALUES = st.one_of(
    st.booleans(),
    st.integers(-2, 12),
    st.integers(0, 9).map(str),
    st.floats(0, 2).map(lambda x: round(x, 2)),
    st.sampled_from(
        ["EAGLE3", "nextn", "NGRAM", "STANDALONE", "none", "triton", "flashmla", "1.0"]
    ),
    st.lists(st.integers(1, 8), min_size=1, max_size=3).map(tuple),
)
ENVIRONMENTS = st.dictionaries(
    st.sampled_from(
        ["SWEEPER_DRAFT_TP", "NCCL_ALGO", "NCCL_NVLS_ENABLE", "HF_HUB_OFFLINE", "PYTHONUNBUFFERED"]
    ),
    st.sampled_from(["0", "1", "2", "8", "Ring", ""]),
)
LAUNCHES = st.builds(
    lambda flags, env, model: launch(flags, env=env, model=model),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=9),
    ENVIRONMENTS,
    st.sampled_from(["/models/target", "org/target"]),
)


@settings(max_examples=300, deadline=None)
@given(LAUNCHES)
def test_the_canonical_form_of_a_canonical_form_is_itself(asked: Launch) -> None:
    made = ENGINE.canonical(asked)
    assert ENGINE.canonical(made) == made
    assert ENGINE.canonical(made).key == made.key


@settings(max_examples=300, deadline=None)
@given(LAUNCHES)
def test_the_canonical_form_is_refused_just_like_what_was_asked(asked: Launch) -> None:
    assert ENGINE.refuse(asked) == ENGINE.refuse(ENGINE.canonical(asked))


@settings(max_examples=200, deadline=None)
@given(LAUNCHES, st.randoms(use_true_random=False))
def test_the_order_of_the_flags_does_not_matter(asked: Launch, random: Any) -> None:
    names = list(asked.flags)
    random.shuffle(names)
    shuffled = launch({n: asked.flags[n] for n in names}, env=asked.env, model=asked.model)
    assert ENGINE.canonical(shuffled).key == ENGINE.canonical(asked).key


# --- refusals -----------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, FlagValue], dict[str, str], str]] = [
    ({"speculative-algorithm": "EAGLE3", STEPS: 3}, {}, "together"),
    ({"speculative-algorithm": "EAGLE3", TOPK: 1}, {}, "together"),
    ({"speculative-algorithm": "EAGLE3", DRAFT: 4}, {}, "together"),
    ({"speculative-algorithm": "EAGLE3", STEPS: 3, TOPK: 2}, {}, "together"),
    (drafting(3, 2, 100), {}, "4 to 11"),
    (drafting(3, 2, 3), {}, "4 to 11"),
    (drafting(0, 1, 1), {}, "must be at least 1"),
    (drafting(3, 0, 4), {}, "must be at least 1"),
    (drafting(3, 2, 4, page_size=16, attention_backend="flashmla"), {}, "pages of 16"),
    (drafting(3, 2, 4, attention_backend="trtllm_mha"), {}, "trtllm_mha"),
    (drafting(attention_backend="flex_attention"), {}, "flex_attention"),
    (drafting(attention_backend="torch_native"), {}, "torch_native"),
    (drafting(3, 2, 4, speculative_use_rejection_sampling=True), {}, "topk 1"),
    (drafting(pp_size=2), {}, "pp-size 2"),
    (drafting(speculative_algorithm="BOGUS"), {}, "BOGUS"),
    ({"tp-size": 8, "nnodes": 3}, {}, "nnodes 3"),
    ({"mem-fraction-static": 1.5}, {}, "between 0 and 1"),
    ({"max-running-requests": 0}, {}, "at least 1"),
    ({"port": 31000}, {}, "--port"),
    ({"admin-api-key": "s"}, {}, "--admin-api-key"),
    (drafting(tp_size=8), {"SWEEPER_DRAFT_TP": "3"}, "divisor"),
    (drafting(tp_size=8), {"SWEEPER_DRAFT_TP": "16"}, "divisor"),
    (drafting(tp_size=8), {"SWEEPER_DRAFT_TP": "one"}, "divisor"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "env", "words"), REFUSED)
def test_what_cannot_work_is_refused_with_its_values(
    flags: dict[str, FlagValue], env: dict[str, str], words: str
) -> None:
    why = ENGINE.refuse(launch(flags, env=env))
    assert why is not None
    assert words in why
    assert "\n" not in why


@pytest.mark.parametrize(
    ("flags", "env"),
    [
        (drafting(), {}),
        (drafting(3, 4, 8), {}),
        (drafting(1, 8, 9), {}),
        (drafting(5, 8, 264), {}),
        ({"speculative-algorithm": "EAGLE3"}, {}),
        (drafting(tp_size=8), {"SWEEPER_DRAFT_TP": "1"}),
        (drafting(tp_size=8), {"SWEEPER_DRAFT_TP": "2"}),
        (drafting(1, 1, 2, attention_backend="torch_native"), {}),
        (
            drafting(speculative_algorithm="EAGLE", pp_size=2),
            {"SGLANG_ENABLE_PP_SPEC": "1"},
        ),
        ({"trust-remote-code": True, "tp-size": 8, "cuda-graph-max-bs-decode": 16}, {}),
    ],
)
def test_what_can_work_is_not_refused(flags: dict[str, FlagValue], env: dict[str, str]) -> None:
    assert ENGINE.refuse(launch(flags, env=env)) is None


def test_a_launch_must_fit_its_gpus() -> None:
    assert ENGINE.refuse(launch({"tp-size": 8}, gpus=8)) is None
    why = ENGINE.refuse(launch({"tp-size": 8}, gpus=4))
    assert why is not None
    assert "needs 8 GPUs" in why
    attention = launch({"tp-size": 8, "dp-size": 8, "enable-dp-attention": True}, gpus=8)
    assert ENGINE.refuse(attention) is None


def test_rules_say_the_versions_they_hold_for() -> None:
    held = [rule.versions for rule in REWRITES] + [rule.versions for rule in REFUSALS]
    assert all(set(versions) <= set(sglang_flags.VERSIONS) for versions in held)
    names = [rule.name for rule in REWRITES] + [rule.name for rule in REFUSALS]
    assert len(set(names)) == len(names)


def test_unknown_flags_come_with_the_nearest_known_one() -> None:
    names = ["speculative-num-step", "tp", "mem_fraction_statc", "qqqqqq", "cuda-graph-max-bs"]
    assert ENGINE.unknown_flags(names) == {
        "speculative-num-step": "speculative-num-steps",
        "mem_fraction_statc": "mem-fraction-static",
        "qqqqqq": None,
    }


# --- what SGLang's own validation does, run in both versions ------------------------------------

D = {"speculative-draft-model-path": "models/tinydraft"}
SA: dict[str, FlagValue] = {"speculative-algorithm": "STANDALONE", **D}
EAGLE: dict[str, FlagValue] = {"speculative-algorithm": "EAGLE", **D}
EAGLE3: dict[str, FlagValue] = {"speculative-algorithm": "EAGLE3", **D}
NGRAM: dict[str, FlagValue] = {"speculative-algorithm": "NGRAM"}
CHAIN: dict[str, FlagValue] = {STEPS: 3, TOPK: 1}
TREE: dict[str, FlagValue] = {STEPS: 3, TOPK: 2, DRAFT: 4}

#: Row of the matrix -> the flags that it was run with.
MATRIX: dict[str, dict[str, FlagValue]] = {
    "none": {},
    "SA defaults": SA,
    "EAGLE defaults (Llama)": EAGLE,
    "EAGLE3 defaults": EAGLE3,
    "NEXTN": {"speculative-algorithm": "NEXTN", **D},
    "lowercase": {"speculative-algorithm": "standalone", **D},
    "EAGLE no draft": {"speculative-algorithm": "EAGLE"},
    "SA no draft": {"speculative-algorithm": "STANDALONE"},
    "draft path no algo": {**D},
    "SA topk1 dt!=steps+1": {**SA, **CHAIN, DRAFT: 8},
    "SA only steps": {**SA, STEPS: 3},
    "SA steps+topk1": {**SA, **CHAIN},
    "SA steps+topk2 no dt": {**SA, STEPS: 3, TOPK: 2},
    "SA only topk": {**SA, TOPK: 2},
    "SA only dt": {**SA, DRAFT: 4},
    "SA steps0": {**SA, STEPS: 0, TOPK: 1, DRAFT: 1},
    "SA 3/2/100": {**SA, STEPS: 3, TOPK: 2, DRAFT: 100},
    "SA topk0": {**SA, STEPS: 3, TOPK: 0, DRAFT: 4},
    "SA topk-neg": {**SA, STEPS: -1, TOPK: 2, DRAFT: 4},
    "SA page16 topk2 triton": {**SA, **TREE, "page-size": 16, "attention-backend": "triton"},
    "SA page64 topk2 flashmla": {**SA, **TREE, "page-size": 64, "attention-backend": "flashmla"},
    "SA topk2 trtllm_mha": {**SA, **TREE, "attention-backend": "trtllm_mha"},
    "SA topk2 fa3": {**SA, **TREE, "attention-backend": "fa3"},
    "SA topk2 fa4": {**SA, **TREE, "attention-backend": "fa4"},
    "SA torch_native": {**SA, **CHAIN, DRAFT: 4, "attention-backend": "torch_native"},
    "SA flex": {**SA, **CHAIN, DRAFT: 4, "attention-backend": "flex_attention"},
    "NGRAM defaults": NGRAM,
    "NGRAM page16": {**NGRAM, "page-size": 16},
    "NGRAM breadth1 page16": {**NGRAM, "page-size": 16, "speculative-ngram-max-bfs-breadth": 1},
    "NGRAM depth>dt": {**NGRAM, DRAFT: 4, STEPS: 9},
    "SA tp4 dpattn2": {**SA, **CHAIN, "tp": 4, "dp": 2, "enable-dp-attention": True},
    "EAGLE3 tp4 dpattn2": {**EAGLE3, **CHAIN, "tp": 4, "dp": 2, "enable-dp-attention": True},
    "EAGLE pp2": {**EAGLE, **CHAIN, "pp-size": 2},
    "EAGLE pp2 nooverlap": {**EAGLE, **CHAIN, "pp-size": 2, "disable-overlap-schedule": True},
    "SA mixed chunk": {**SA, **CHAIN, "enable-mixed-chunk": True},
    "SA rejection": {**SA, **CHAIN, "speculative-use-rejection-sampling": True},
    "EAGLE rejection topk2": {**EAGLE, **TREE, "speculative-use-rejection-sampling": True},
    "SA adaptive": {**SA, "speculative-adaptive": True},
    "EAGLE adaptive": {**EAGLE, "speculative-adaptive": True},
    "EAGLE adaptive steps2": {**EAGLE, "speculative-adaptive": True, STEPS: 2},
    "SA deterministic": {**SA, **CHAIN, "enable-deterministic-inference": True, "tp": 2},
    "BOGUS": {"speculative-algorithm": "BOGUS"},
    "draft missing": {
        "speculative-algorithm": "STANDALONE",
        "speculative-draft-model-path": "models/nope",
    },
    "draft window 0": {**EAGLE3, "speculative-draft-window-size": 0},
    "max-bs": {"cuda-graph-max-bs-decode": 7},
    "bs list spec": {**SA, **CHAIN, "cuda-graph-bs-decode": (1, 2, 4)},
    "mrr spec 16": {**SA, **CHAIN, "max-running-requests": 16},
    "no overlap": {**SA, **CHAIN, "disable-overlap-schedule": True},
    "symm mem": {"enable-symm-mem": True, "tp": 2},
    "nccl nvls": {"enable-nccl-nvls": True, "tp": 2},
    "mem 1.5": {"mem-fraction-static": 1.5},
    "tp3 (heads 4)": {"tp": 3},
    "tp8 nnodes3": {"tp": 8, "nnodes": 3},
}
#: Accepted by the validation that was run, and dead later.
DIES_LATER = {
    "SA steps+topk2 no dt": "the tree is built without a size",
    "SA steps0": "no tree has no steps",
    "SA 3/2/100": "a tree of 11 has no 100 nodes",
    "SA topk0": "a tree without branches",
    "SA topk-neg": "negative steps",
    "SA torch_native": "no many-step draft decode",
    "EAGLE pp2": "check_server_args refuses it",
    "EAGLE pp2 nooverlap": "check_server_args refuses it",
    "mem 1.5": "no GPU has 150 % of its memory",
    "tp8 nnodes3": "check_server_args refuses it",
}
#: Refused by the engine for what only the node can know.
NOT_OURS = {
    "NGRAM page16": "the backend is chosen by GPU",
    "draft missing": "the disk is the node's",
}


def rows() -> list[tuple[str, str, bool]]:
    found = []
    for version in sglang_flags.VERSIONS:
        text = (DATA / f"matrix_{version}.txt").read_text()
        for name, verdict in re.findall(
            r"^\[(\D[^\]]*)\] (OK|RAISES|SystemExit)", text, re.MULTILINE
        ):
            found.append((version, name, verdict == "OK"))
    return found


@pytest.mark.parametrize(("version", "name", "accepted"), rows())
def test_refusals_agree_with_what_sglang_did(version: str, name: str, accepted: bool) -> None:
    why = ENGINE.refuse(launch(MATRIX[name]))
    expected = (accepted and name not in DIES_LATER) or name in NOT_OURS
    assert (why is None) == expected, why


def test_the_whole_matrix_is_compared() -> None:
    assert {name for _, name, _ in rows()} == set(MATRIX)


@pytest.mark.parametrize("version", sglang_flags.VERSIONS)
def test_the_canonical_form_agrees_with_what_sglang_resolved(version: str) -> None:
    text = (DATA / f"matrix_{version}.txt").read_text()
    resolved = re.findall(
        r"^\[(\D[^\]]*)\] OK algo=(\S+) steps=\S+ topk=\S+ dt=(\S+)", text, re.MULTILINE
    )
    compared = 0
    for name, algorithm, draft_tokens in resolved:
        flags = ENGINE.canonical(launch(MATRIX[name])).flags
        assert str(flags.get("speculative-algorithm")) == algorithm
        if DRAFT in flags and name not in DIES_LATER:
            compared += 1
            assert str(flags[DRAFT]) == draft_tokens
    assert compared > 5


# --- read-back ----------------------------------------------------------------------------------


def info(**more: Any) -> dict[str, Any]:
    said = {
        "model_path": "/models/target",
        "port": 7,
        "version": "0.5.23",
        "max_total_num_tokens": 1000,
        "status": "ready",
        "tp_size": 2,
        "mem_fraction_static": 0.85,
        "max_running_requests": 48,
        "attention_backend": "fa3",
        "page_size": 1,
        "random_seed": 626239543,
        "api_key": "hunter2",
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": "/models/draft",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
        "cuda_graph_config": {"decode": {"backend": "full", "max_bs": 4, "bs": [1, 2, 4]}},
        "cuda_graph_bs_decode": [1, 2, 4],
        "internal_states": [{"effective_max_running_requests_per_dp": 48}],
    }
    return said | more


def test_what_agrees_is_not_called_rewritten() -> None:
    flags = drafting(
        tp_size="2",
        mem_fraction_static="0.850",
        cuda_graph_bs_decode=(1, 2, 4),
        cuda_graph_config='{"decode": {"max_bs": 4}}',
    )
    facts = ENGINE.read_back(launch(flags), info(), port=7)
    assert facts.rewritten == {}
    assert (facts.version, facts.simulated, facts.time_scale) == ("0.5.23", False, 1.0)
    assert facts.max_total_tokens == 1000


def test_what_was_rewritten_is_shown_with_both_values() -> None:
    facts = ENGINE.read_back(
        launch(drafting(draft=8, page_size=16)), info(disable_radix_cache=True), port=7
    )
    assert facts.rewritten == {DRAFT: (8, 4), "page-size": (16, 1)}


def test_what_was_not_asked_is_read_where_it_matters_for_fairness() -> None:
    facts = ENGINE.read_back(launch(), info(), port=7)
    assert facts.flags["max-running-requests"] == 48
    assert facts.flags["attention-backend"] == "fa3"
    assert "random-seed" not in facts.flags
    assert "hunter2" not in repr(facts)


def test_an_uncapped_baseline_shows_the_cap_that_took_effect() -> None:
    said = info(
        max_running_requests=None,
        speculative_algorithm=None,
        internal_states=[{"effective_max_running_requests_per_dp": 4096}],
    )
    assert ENGINE.read_back(launch(), said, port=7).flags["max-running-requests"] == 4096


def test_an_older_answer_with_less_in_it_is_read_too() -> None:
    said = {
        "model_path": "/models/target/",
        "internal_states": [{"memory_usage": {"token_capacity": 9}}],
    }
    facts = ENGINE.read_back(launch(drafting()), said, port=7)
    assert (facts.version, facts.max_total_tokens, facts.rewritten) == ("unknown", 9, {})


@pytest.mark.parametrize(
    "said",
    [info(port=8), info(model_path="/models/other"), {"error": "not found"}, {}],
)
def test_another_servers_answer_is_not_ours(said: dict[str, Any]) -> None:
    with pytest.raises(LaunchFailed) as caught:
        ENGINE.read_back(launch(), said, port=7)
    assert caught.value.failure.kind is FailureClass.FOREIGN_SERVER


def test_a_hub_name_may_come_back_as_its_snapshot() -> None:
    said = info(model_path="/cache/models--org--target/snapshots/abc")
    assert ENGINE.read_back(launch(model="org/target"), said, port=7).version == "0.5.23"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("org/target", "/root/.cache/modelscope/hub/models/org/target"),
        ("org/target-0.5b", "/cache/modelscope/hub/org/target-0___5b/"),
        ("org/target:Q4_K_M", "/cache/models--org--target/snapshots/abc/x-Q4_K_M.gguf"),
        ("org/target/x.gguf", "/cache/models--org--target/snapshots/abc/x.gguf"),
    ],
)
def test_a_hub_name_may_come_back_as_a_path_of_its_cache(model: str, said: str) -> None:
    ENGINE.read_back(launch(model=model), info(model_path=said), port=7)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("org/target", "/cache/modelscope/hub/models/org/other"),
        ("org/target", "/cache/models--org--target2/snapshots/abc"),
        ("/data/org/target", "/other/org/target"),
    ],
)
def test_another_model_is_a_strangers_whatever_its_path(model: str, said: str) -> None:
    with pytest.raises(LaunchFailed):
        ENGINE.read_back(launch(model=model), info(model_path=said), port=7)


def test_adaptive_speculation_is_for_chains_and_chooses_what_is_not_given() -> None:
    adaptive: dict[str, FlagValue] = {"speculative-adaptive": True}
    assert key(drafting(3, 4, 8) | adaptive) == key(drafting(3, 4, 8))
    assert key(drafting(3, 1, 4) | adaptive) != key(drafting(3, 1, 4))
    assert ENGINE.refuse(launch(drafting(2, 4, 8) | adaptive)) is None
    assert "out of 0, 1, 3" in (ENGINE.refuse(launch(drafting(2, 1, 3) | adaptive)) or "")
    for missing in (STEPS, TOPK):
        part = {name: value for name, value in drafting().items() if name != missing}
        assert ENGINE.refuse(launch(part | adaptive)) is None
        assert ENGINE.refuse(launch(part)) is not None


def test_a_simulated_server_says_so() -> None:
    facts = ENGINE.read_back(launch(), info(simulated=True, time_scale=50), port=7)
    assert (facts.simulated, facts.time_scale) == (True, 50.0)


@pytest.mark.parametrize(
    ("said", "works"), [({}, False), ({"draft_tp_size": 2}, False), ({"draft_tp_size": 1}, True)]
)
def test_a_draft_tp_without_effect_is_rejected(said: dict[str, Any], works: bool) -> None:
    asked = launch(drafting(tp_size=2), env={"SWEEPER_DRAFT_TP": "1"})
    if works:
        assert ENGINE.read_back(asked, info(**said), port=7).rewritten == {}
        return
    with pytest.raises(LaunchFailed) as caught:
        ENGINE.read_back(asked, info(**said), port=7)
    assert caught.value.failure.kind is FailureClass.CONFIG_REJECTED
    assert "SWEEPER_DRAFT_TP=1" in caught.value.failure.line
