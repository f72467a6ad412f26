"""Constants of the cost model, one table a machine and a model; the formulas are in `cost.py`.

Where a constant comes from:

    history   the speeds and accept lengths that the project was asked for (docs/simulated.md)
    logs      logs of a real SGLang on one H200 (docs/simulated.md)
    card      the model's published architecture
    guess     no source; plausible, and it moves no figure of the history
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

KINDS = ("code", "maths", "chat", "translation", "summary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """How well one draft model guesses.

    Attributes:
        accept: Chance that the draft's first guess at position k is right when all before it
            were, for k = 1, 2, ...; the last one holds for all later positions.
        second: Share of the wrong first guesses that the draft's second guess puts right.
        decay: Each further guess puts right this share of what the one before did.
        kinds: Kind of prompt -> exponent on `accept`; below 1 is easier to guess.
    """

    accept: tuple[float, ...]
    second: float = 0.12
    decay: float = 0.5
    kinds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One machine with one model; times in ms of engine time.

    Attributes:
        name: What `/server_info` calls it.
        architecture: The target's class, as the logs name it.
        draft_architecture: The draft's class.
        is_mla: Whether the target's attention is multi-head latent attention.
        llama_defaults: Whether SGLang's defaults for Llama, (5, 4, 8), hold for it.
        tp: Number of GPUs that the constants hold for.
        tp_scaling: Share of the compute that is divided among the GPUs.
        base_ms: Compute of one forward pass of the target with one token.
        comm_ms: Communication of one such pass.
        comm_token_ms: Communication of each further token: bytes by bandwidth.
        nccl_penalty: Factor on `comm_ms` when NCCL replaces the custom all-reduce kernel in a
            server without speculation.
        expert_ms: Each further set of experts that a larger batch reads.
        experts: Routed experts a layer; 0 for a dense model.
        experts_per_token: How many of them one token uses.
        token_ms: Compute of each further token.
        overhead_ms: A speculative step's fixed part: draft extend, sampling, copies, scheduling.
        tree_ms: What a tree (topk > 1) adds to it.
        no_overlap_ms: What `--disable-overlap-schedule` adds to any step.
        draft_ms: Compute of one draft pass on all GPUs.
        draft_comm_ms: Communication of one draft pass.
        draft_one_factor: Factor on `draft_ms` when the draft runs on one GPU.
        draft_token_ms: Each further token of a draft pass.
        host_ms: Time in which the host launches a target pass without CUDA graphs.
        host_draft_ms: The same for a draft pass.
        prefill_ms: Fixed part of a prefill.
        prefill_token_ms: Each uncached prompt token.
        weight_gb: Weights a GPU, at `tp`.
        draft_weight_gb: The draft's weights a GPU.
        gpu_gb: Memory a GPU.
        kv_token_kb: KV cache a token and GPU, in KiB.
        context_len: The model's context length in tokens.
        drafts: Name of a quality curve -> the curve.
    """

    name: str
    architecture: str
    draft_architecture: str
    is_mla: bool
    llama_defaults: bool
    tp: int
    tp_scaling: float
    base_ms: float
    comm_ms: float
    comm_token_ms: float
    nccl_penalty: float
    expert_ms: float
    experts: int
    experts_per_token: int
    token_ms: float
    overhead_ms: float
    tree_ms: float
    no_overlap_ms: float
    draft_ms: float
    draft_comm_ms: float
    draft_one_factor: float
    draft_token_ms: float
    host_ms: float
    host_draft_ms: float
    prefill_ms: float
    prefill_token_ms: float
    weight_gb: float
    draft_weight_gb: float
    gpu_gb: float
    kv_token_kb: float
    context_len: int
    drafts: Mapping[str, Draft]


#: Code is far easier than the rest: 101.8 tok/s against 75.6 to 80 (history).
_CODE_STANDS_OUT = {
    "code": 0.57, "maths": 1.02, "chat": 1.19, "translation": 1.12, "summary": 1.08,
}  # fmt: skip
#: 66.0 to 75.3 tok/s over five prompts (history).
_KINDS_ARE_CLOSE = {
    "code": 0.90, "maths": 0.93, "chat": 1.14, "translation": 1.05, "summary": 0.99,
}  # fmt: skip
#: 19 % of the drafts accepted, 46.7 to 54.8 tok/s (history).
_WRONG_LAYERS = Draft(
    accept=(0.19,),
    kinds={"code": 0.71, "maths": 1.0, "chat": 1.05, "translation": 1.04, "summary": 1.0},
)

KIMI_FIRST = Calibration(
    name="kimi-k2.5-first",
    architecture="KimiK25ForConditionalGeneration",  # card
    draft_architecture="LlamaForCausalLMEagle3",
    is_mla=True,  # card
    llama_defaults=False,
    tp=8,
    tp_scaling=0.8,  # guess
    base_ms=8.03,  # history: 90 tok/s without speculation
    comm_ms=3.0,  # guess: 122 all-reduces of 25 us
    comm_token_ms=0.009,  # 122 all-reduces of 14 KB at 200 GB/s, both ways
    nccl_penalty=1.15,  # guess
    expert_ms=0.49,  # history: 16 against 5 draft tokens
    experts=384,  # card
    experts_per_token=8,  # card
    token_ms=0.02,  # guess
    overhead_ms=9.9,  # history: no overlap with speculation then
    tree_ms=0.0,  # all of its measurements were trees; in overhead_ms
    no_overlap_ms=0.0,  # in overhead_ms
    draft_ms=0.45,  # history: 3 against 2 steps
    draft_comm_ms=0.45,
    draft_one_factor=1.75,  # guess
    draft_token_ms=0.005,  # guess
    host_ms=22.0,  # history: 53.2 tok/s without graphs, at 16 and at 5 draft tokens
    host_draft_ms=2.78,
    prefill_ms=40.0,  # guess
    prefill_token_ms=0.06,  # guess: 16,000 tok/s
    weight_gb=73.5,  # card: about 590 GB of INT4 weights on 8 GPUs
    draft_weight_gb=0.8,  # guess
    gpu_gb=139.8,  # logs
    kv_token_kb=68.6,  # card: 61 layers of 576 values in bfloat16, not split over GPUs
    context_len=262144,  # card
    drafts={
        "ours": Draft(accept=(0.605, 0.52, 0.46, 0.42), kinds=_CODE_STANDS_OUT),
        "aq-medai": Draft(accept=(0.56, 0.49, 0.42, 0.38), kinds=_KINDS_ARE_CLOSE),
        "wrong-layers": _WRONG_LAYERS,
    },
)

KIMI_LATER = Calibration(
    name="kimi-k2.5-later",
    architecture=KIMI_FIRST.architecture,
    draft_architecture=KIMI_FIRST.draft_architecture,
    is_mla=True,
    llama_defaults=False,
    tp=8,
    tp_scaling=0.8,
    base_ms=KIMI_FIRST.base_ms,
    comm_ms=3.0,
    comm_token_ms=0.009,
    nccl_penalty=1.15,
    expert_ms=0.49,
    experts=384,
    experts_per_token=8,
    token_ms=0.02,
    overhead_ms=6.0,  # history: 71.3 tok/s at 5 steps, 94 at 2
    tree_ms=1.5,  # guess: trees must not beat the chain that the history found best
    no_overlap_ms=3.8,  # history: the first calibration's overhead less this one's
    draft_ms=1.45,  # history: 5 against 2 steps
    draft_comm_ms=1.1,  # history: NCCL alone lifts 2 steps over the baseline
    draft_one_factor=1.75,  # guess
    draft_token_ms=0.005,
    host_ms=22.0,
    host_draft_ms=2.78,
    prefill_ms=40.0,
    prefill_token_ms=0.06,
    weight_gb=73.5,
    draft_weight_gb=0.8,
    gpu_gb=139.8,
    kv_token_kb=68.6,
    context_len=262144,
    drafts={
        "ours": Draft(accept=(0.66, 0.55, 0.485, 0.45, 0.42), kinds=_KINDS_ARE_CLOSE),
        "aq-medai": Draft(accept=(0.57, 0.48, 0.42, 0.38), kinds=_KINDS_ARE_CLOSE),
        "wrong-layers": _WRONG_LAYERS,
    },
)

SMALL = Calibration(
    name="small-1gpu",
    architecture="LlamaForCausalLM",
    draft_architecture="LlamaForCausalLMEagle3",
    is_mla=False,
    llama_defaults=True,
    tp=1,
    tp_scaling=0.2,  # guess: launch-bound at this size
    base_ms=2.35,  # logs: 419 tok/s
    comm_ms=2.8,  # logs: 415 tok/s on two GPUs over NCCL, taken to eight
    comm_token_ms=0.002,
    nccl_penalty=1.15,
    expert_ms=0.0,
    experts=0,
    experts_per_token=0,
    token_ms=0.012,  # guess
    overhead_ms=0.70,  # logs: 477, 684 and 650 tok/s at 1, 3 and 5 steps
    tree_ms=0.08,  # logs: 678 tok/s at 3/4/8
    no_overlap_ms=0.3,  # guess
    draft_ms=0.07,  # logs
    draft_comm_ms=0.2,
    draft_one_factor=1.0,
    draft_token_ms=0.002,
    host_ms=16.3,  # docs/evidence/h200.md: 19 to 23 ms a step without graphs
    host_draft_ms=2.0,  # the same
    prefill_ms=12.0,  # guess
    prefill_token_ms=0.01,  # guess
    weight_gb=4.86,  # logs
    draft_weight_gb=0.06,  # logs
    gpu_gb=139.8,  # logs
    kv_token_kb=30.0,  # logs: 5,705,568 tokens in 122 GB, less the draft's
    context_len=8192,  # logs
    drafts={
        "ours": Draft(
            accept=(0.57, 0.72, 0.62, 0.42, 0.40),
            kinds={"code": 0.86, "maths": 1.0, "chat": 1.16, "translation": 1.04, "summary": 0.98},
        ),
        "aq-medai": Draft(accept=(0.45, 0.5, 0.4)),
        "wrong-layers": _WRONG_LAYERS,
    },
)

CALIBRATIONS: Mapping[str, Calibration] = {c.name: c for c in (KIMI_LATER, KIMI_FIRST, SMALL)}
