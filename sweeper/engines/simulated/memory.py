"""Where a GPU's memory goes: weights, KV pool, graphs. Pure; in GB and tokens."""

from dataclasses import dataclass

from sweeper.engines.simulated.calibrations import Calibration
from sweeper.engines.simulated.resolve import Resolved

#: Activations, communicators and workspaces. A guess.
_WORK_GB = 2.0
#: One captured batch size of one kind of graph. Logs: 0.09 GB for four sizes with two GPUs,
#: and more for a larger model, a guess.
_GRAPH_GB = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """One GPU's memory.

    Attributes:
        free_gb: Free before the weights.
        weight_gb: The target's weights.
        draft_gb: The draft's weights; 0 without a draft model.
        kv_tokens: Tokens in the KV pool; 0 or less where the weights leave no room.
        kv_gb: The pool's size.
        needed_fraction: The share of memory below which no pool is left.
        graph_gb: What graph capture takes.
        rest_gb: What is left for it.
    """

    free_gb: float
    weight_gb: float
    draft_gb: float
    kv_tokens: int
    kv_gb: float
    needed_fraction: float
    graph_gb: float
    rest_gb: float


def plan_memory(
    cal: Calibration, resolved: Resolved, *, draft_tp: int | None = None
) -> MemoryPlan:
    """Return where the memory goes with these flags.

    A draft that `draft_tp` GPUs share has so many shares of its weights on each; by default it is
    shared by all of `--tp-size`.

    SGLang gives weights and KV pool together the share `--mem-fraction-static`, and captures
    its graphs in the rest. The weights a GPU are the calibration's whatever `--tp-size` says, so
    that a small demonstration with the large model's speeds can start.
    """
    flags = resolved.flags
    has_draft = resolved.speculating and flags["speculative_algorithm"] != "NGRAM"
    weight_gb = cal.weight_gb
    copies = flags["tp_size"] // (draft_tp or flags["tp_size"])
    draft_gb = cal.draft_weight_gb * copies if has_draft else 0.0
    free_gb = cal.gpu_gb - 0.8
    kv_gb = free_gb * flags["mem_fraction_static"] - weight_gb - draft_gb
    tokens = int(kv_gb * 2**20 / cal.kv_token_kb)
    if flags["max_total_tokens"] is not None:
        tokens = min(tokens, flags["max_total_tokens"])
    kinds = 3 if has_draft else 1
    graphs = len(resolved.graph_sizes) * kinds if resolved.decode_graphs else 0
    return MemoryPlan(
        free_gb=free_gb,
        weight_gb=weight_gb,
        draft_gb=draft_gb,
        kv_tokens=tokens,
        kv_gb=kv_gb,
        needed_fraction=(weight_gb + draft_gb) / free_gb,
        graph_gb=graphs * _GRAPH_GB,
        rest_gb=free_gb * (1 - flags["mem_fraction_static"]) - _WORK_GB,
    )
