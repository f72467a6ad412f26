"""From effective flags and environment to what the speed depends on."""

from collections.abc import Mapping
from typing import Any

from sweeper.engines.simulated.cost import Nccl, Setting
from sweeper.engines.simulated.resolve import Resolved

#: Backends that can decode a draft of two and more steps (speculative/draft_utils.py).
DRAFT_BACKENDS = frozenset(
    {
        "flashinfer", "triton", "aiter", "fa3", "hybrid_linear_attn", "flashmla", "trtllm_mha",
        "trtllm_mla", "cutedsl_mla", "dsa", "ascend", "fa4", "dsv4", "intel_amx", "intel_xpu",
    }
)  # fmt: skip


def tree_limit(steps: int, topk: int) -> int:
    """Return the most draft tokens that a tree can have, its root included."""
    return 1 + topk + (steps - 1) * topk**2


def tree_is_too_large(resolved: Resolved, setting: Setting) -> bool:
    """Tell whether the draft yields fewer nodes than its tree is to have; no start survives it."""
    steps, topk, tokens = setting.steps, setting.topk, setting.draft_tokens
    fits = topk >= 1 and steps >= 1 and 2 <= (tokens or 0) <= tree_limit(steps, topk)
    return _drafts(resolved, setting) and not fits


def tree_is_too_small(resolved: Resolved, setting: Setting) -> bool:
    """Tell whether the tree cannot hold a path of all its steps; no request survives it."""
    is_tree = _drafts(resolved, setting) and setting.topk > 1
    return is_tree and setting.draft_tokens <= setting.steps


def _drafts(resolved: Resolved, setting: Setting) -> bool:
    return resolved.speculating and setting.draft != "ngram"


def setting_of(resolved: Resolved, environ: Mapping[str, str]) -> Setting:
    """Return what of the flags and of the environment the speed depends on."""
    flags = resolved.flags
    channels = environ.get("NCCL_MIN_NCHANNELS") or environ.get("NCCL_MAX_NCHANNELS")
    nccl = Nccl(
        algo=(environ.get("NCCL_ALGO") or "").rpartition(":")[2].upper() or None,
        proto=(environ.get("NCCL_PROTO") or "").upper() or None,
        channels=int(channels) if channels and channels.isdigit() else None,
    )
    common = {
        "graphs": resolved.decode_graphs,
        "nccl": nccl,
        "tp": flags["tp_size"],
        "custom_all_reduce": not flags["disable_custom_all_reduce"],
        "overlap": not flags["disable_overlap_schedule"],
    }
    if not resolved.speculating:
        return Setting(**common)
    return Setting(
        draft=_curve(flags),
        # EAGLE reads one layer's hidden states where an EAGLE-3 draft expects three.
        matches=flags["speculative_algorithm"] != "EAGLE",
        steps=flags["speculative_num_steps"],
        topk=flags["speculative_eagle_topk"],
        draft_tokens=flags["speculative_num_draft_tokens"],
        draft_tp=int(width)
        if (width := environ.get("SWEEPER_DRAFT_TP", "")).isdecimal()
        else None,
        **common,
    )


def _curve(flags: Mapping[str, Any]) -> str:
    path = (flags["speculative_draft_model_path"] or "").lower()
    if flags["speculative_algorithm"] == "NGRAM":
        return "ngram"
    return next((name for name in ("aq-medai", "wrong-layers") if name in path), "ours")
