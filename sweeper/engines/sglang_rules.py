"""Settings that SGLang rejects, or accepts and dies of after the load.

Refusals are data: a name, the versions they were read or run in, and a pure function that gives
the reason. Sources are SGLang's `arg_groups/speculative_hook.py`, `server_args.py` and
`speculative/eagle_utils.py` of 0.5.15 and 0.5.23, checked against both by running them. The
version on a node is not known before its server answers, so a rule that holds in one of the two
alone is not among them. Flags that no version knows are refused where the space file is read: a
person may vouch for one of a newer version or an own build there (`engine.known_flags`).
"""

from collections.abc import Callable
from dataclasses import dataclass

from sweeper.draft_tp import plan
from sweeper.engines.sglang_rewrites import BOTH, TREE_ALGORITHMS, Setting

#: Spellings that SGLang knows; NEXTN is EAGLE under another name.
ALGORITHMS = frozenset(
    {"EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO", "FROZEN_KV_MTP"}
)
#: Backends that can verify a tree over pages of several tokens.
_PAGED_TREE_BACKENDS = frozenset({"flashinfer", "fa3", "triton"})
#: Backends without the many-step decode that a draft of two steps or more needs.
_NO_DRAFT_DECODE = frozenset(
    {"torch_native", "flex_attention", "wave", "cutlass_mla", "dual_chunk_flash_attn"}
)
#: Step counts that adaptive speculation moves between, of both versions together.
_ADAPTIVE_STEPS = (0, 1, 3, 5, 7)
#: Breadth of an n-gram tree where the flag is not given.
_NGRAM_BREADTH = 10
#: An admin key alone would lock the control requests out, which send the plain key.
_OURS = ("model-path", "host", "port", "admin-api-key")
_POSITIVE = (
    "tp-size",
    "pp-size",
    "dp-size",
    "nnodes",
    "max-running-requests",
    "max-total-tokens",
    "page-size",
    "context-length",
    "cuda-graph-max-bs-decode",
    "num-continuous-decode-steps",
    "stream-interval",
    "decode-log-interval",
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A setting that cannot work, and why: a sentence with the values, or None."""

    name: str
    why: Callable[[Setting], str | None]
    versions: tuple[str, ...] = BOTH


def refuse(setting: Setting) -> str | None:
    """Return why a setting, rewritten before, cannot work, or None."""
    for refusal in REFUSALS:
        why = refusal.why(setting)
        if why is not None:
            return why
    return None


def _ours(s: Setting) -> str | None:
    taken = [name for name in _OURS if name in s.flags]
    if not taken:
        return None
    return f"--{taken[0]} is set by Sweeper itself or would lock it out; leave it away"


def _not_positive(s: Setting) -> str | None:
    for name in _POSITIVE:
        value = s.integer(name)
        if value is not None and value < 1:
            return f"--{name} is {value}, and must be at least 1"
    return None


def _memory_fraction(s: Setting) -> str | None:
    value = s.flags.get("mem-fraction-static")
    if not isinstance(value, int | float) or 0 < value < 1:
        return None
    return f"--mem-fraction-static is {value}, and must lie between 0 and 1"


def _too_few_gpus(s: Setting) -> str | None:
    nodes, pp = s.integer("nnodes", 1) or 1, s.integer("pp-size", 1) or 1
    dp = 1 if s.is_on("enable-dp-attention") else s.integer("dp-size", 1) or 1
    needed = s.tp * pp * dp
    if s.gpus == 0 or needed <= s.gpus * nodes:
        return None
    return (
        f"tp {s.tp} x pp {pp} x dp {dp} needs {needed} GPUs, and the server has {s.gpus * nodes}"
    )


def _nodes(s: Setting) -> str | None:
    nodes = s.integer("nnodes", 1) or 1
    pp = s.integer("pp-size", 1) or 1
    if s.tp * pp % nodes == 0:
        return None
    return f"--tp-size {s.tp} x --pp-size {pp} is not divisible by --nnodes {nodes}"


def _algorithm(s: Setting) -> str | None:
    if s.algorithm is None or s.algorithm in ALGORITHMS:
        return None
    return f"--speculative-algorithm {s.algorithm} is none of {', '.join(sorted(ALGORITHMS))}"


def _half_set(s: Setting) -> str | None:
    if s.algorithm not in TREE_ALGORITHMS:
        return None
    names = ("speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens")
    given = [name for name in names if name in s.flags]
    # Adaptive speculation chooses what is not given.
    if len(given) in {0, 3} or s.is_on("speculative-adaptive"):
        return None
    missing = ", ".join(f"--{name}" for name in names if name not in s.flags)
    return (
        f"--{given[0]} {s.flags[given[0]]} is set without {missing}; "
        "set steps, top-k and draft tokens together, or none of them"
    )


def _tree(s: Setting) -> str | None:
    """Compare the draft tokens with what a tree of this shape yields, and with what it must hold.

    `eagle_utils.py` takes draft - 1 nodes out of topk + (steps - 1) * topk**2. A path of all steps
    and the sure token must fit into them: `_compact_accept_to_front` of the EAGLE worker (0.5.15,
    0.5.17 and 0.5.23) dies at the first request otherwise.
    """
    steps = s.integer("speculative-num-steps")
    topk = s.integer("speculative-eagle-topk")
    draft = s.integer("speculative-num-draft-tokens")
    if s.algorithm not in TREE_ALGORITHMS:
        return None
    fewest = 0 if s.is_on("speculative-adaptive") else 1
    for name, value, least in (
        ("speculative-num-steps", steps, fewest),
        ("speculative-eagle-topk", topk, 1),
    ):
        if value is not None and value < least:
            return f"--{name} is {value}, and must be at least {least}"
    if not steps or topk is None or draft is None:
        return None
    least, most = steps + 1, 1 + topk + (steps - 1) * topk**2
    if least <= draft <= most:
        return None
    return (
        f"--speculative-num-draft-tokens is {draft}; {steps} steps with top-k {topk} "
        f"allow {least} to {most}"
    )


def _trtllm_tree(s: Setting) -> str | None:
    topk = s.integer("speculative-eagle-topk", 1) or 1
    used = [s.text("attention-backend"), s.text("decode-attention-backend")]
    if s.algorithm in TREE_ALGORITHMS and topk > 1 and "trtllm_mha" in used:
        return f"trtllm_mha drafts chains only, and --speculative-eagle-topk is {topk}"
    return None


def _paged_tree(s: Setting) -> str | None:
    page = s.integer("page-size", 1) or 1
    backend = s.text("decode-attention-backend", "attention-backend")
    if s.algorithm == "NGRAM":
        width = s.integer("speculative-ngram-max-bfs-breadth", _NGRAM_BREADTH) or 1
        able = frozenset({"flashinfer"})
    elif s.algorithm in TREE_ALGORITHMS:
        width, able = s.integer("speculative-eagle-topk", 1) or 1, _PAGED_TREE_BACKENDS
    else:
        return None
    # Without the flag the engine chooses by GPU, so it is not ours to refuse.
    if page == 1 or width <= 1 or backend is None or backend in able:
        return None
    return (
        f"a draft tree of width {width} over pages of {page} needs an attention backend "
        f"of {', '.join(sorted(able))}, not {backend}"
    )


def _flex(s: Setting) -> str | None:
    used = (s.text("attention-backend"), s.text("decode-attention-backend"))
    if s.algorithm and "flex_attention" in used:
        return f"flex_attention cannot speculate, and --speculative-algorithm is {s.algorithm}"
    return None


def _draft_decode(s: Setting) -> str | None:
    steps = s.integer("speculative-num-steps", 1) or 1
    backend = s.text(
        "speculative-draft-attention-backend", "decode-attention-backend", "attention-backend"
    )
    if s.algorithm in TREE_ALGORITHMS and steps >= 2 and backend in _NO_DRAFT_DECODE:
        return f"{backend} cannot decode a draft of {steps} steps; it can one of 1"
    return None


def _rejection_sampling(s: Setting) -> str | None:
    flag = "--speculative-use-rejection-sampling"
    if s.algorithm is None or not s.is_on(flag[2:]):
        return None
    if s.algorithm not in {"EAGLE", "EAGLE3"}:
        return f"{flag} works with EAGLE and EAGLE3, not with {s.algorithm}"
    topk = s.integer("speculative-eagle-topk")
    if topk is not None and topk != 1:
        return f"{flag} needs --speculative-eagle-topk 1, not {topk}"
    for kind in ("single", "acc"):
        name = f"speculative-accept-threshold-{kind}"
        if s.flags.get(name, 1.0) != 1.0:
            return f"{flag} needs --{name} 1.0, not {s.flags[name]}"
    return None


def _dp_attention(s: Setting) -> str | None:
    if s.algorithm in {"STANDALONE", "NGRAM"} and s.uses_dp_attention:
        return f"{s.algorithm} speculation does not work with data-parallel attention"
    return None


def _pipeline(s: Setting) -> str | None:
    pp = s.integer("pp-size", 1) or 1
    if s.algorithm is None or pp == 1:
        return None
    may = s.env.get("SGLANG_ENABLE_PP_SPEC") == "1" or s.text("disaggregation-mode") == "prefill"
    if s.algorithm == "EAGLE" and may:
        return None
    return f"--pp-size {pp} does not work with {s.algorithm} speculation"


def _adaptive(s: Setting) -> str | None:
    steps = s.integer("speculative-num-steps")
    if s.algorithm not in {"EAGLE", "EAGLE3"} or not s.is_on("speculative-adaptive"):
        return None
    if steps is None or steps in _ADAPTIVE_STEPS or "speculative-adaptive-config" in s.flags:
        return None
    return (
        f"--speculative-adaptive needs --speculative-num-steps out of "
        f"{', '.join(map(str, _ADAPTIVE_STEPS))}, not {steps}"
    )


def _draft_window(s: Setting) -> str | None:
    width = s.integer("speculative-draft-window-size")
    if s.algorithm is None or width is None or width > 0:
        return None
    return f"--speculative-draft-window-size is {width}, and must be at least 1"


def _draft_tp(s: Setting) -> str | None:
    """Ask the plugin that would be loaded; it refuses the same when the server starts."""
    settings = {name.replace("-", "_"): value for name, value in s.flags.items()}
    try:
        if plan.decide(s.env, settings) is not None:
            draft = s.text("speculative-draft-model-path")
            plan.check_architecture(plan.draft_architecture(draft))
    except plan.Refused as refused:
        return str(refused)
    return None


REFUSALS: tuple[Refusal, ...] = (
    Refusal("flags that are Sweeper's own", _ours),
    Refusal("counts below one", _not_positive),
    Refusal("memory fraction out of range", _memory_fraction),
    Refusal("more GPUs than there are", _too_few_gpus),
    Refusal("tensor parallelism across nodes", _nodes),
    Refusal("unknown algorithm", _algorithm),
    Refusal("flex attention", _flex),
    Refusal("rejection sampling", _rejection_sampling),
    Refusal("data-parallel attention", _dp_attention),
    Refusal("pipeline parallelism", _pipeline),
    Refusal("adaptive steps", _adaptive),
    Refusal("draft window", _draft_window),
    Refusal("half a group of draft flags", _half_set),
    Refusal("tree limit", _tree),
    Refusal("trtllm_mha with a tree", _trtllm_tree),
    Refusal("tree over pages", _paged_tree),
    Refusal("draft decode backend", _draft_decode),
    Refusal("draft TP", _draft_tp),
)
