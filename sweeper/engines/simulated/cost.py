"""The cost model: how long a step takes and how many tokens it yields. Pure; ms of engine time.

    step     = target(batch x draft tokens) + overhead + steps x draft      with speculation
    step     = target(batch)                                                without
    target   = compute + experts read + communication
    graphs   off: sqrt(gpu^2 + host^2): the GPU waits for a host that launches kernel by kernel
    accepted = sum over the nodes of the draft's tree of the chance that the path to it is right
    speed    = tokens / (prefill + steps needed x step)

What it leaves out: attention's cost in the length of the context, power and clocks, and how the
acceptance of one step depends on that of the step before.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from sweeper.engines.simulated.calibrations import KINDS, Calibration, Draft

#: (NCCL_ALGO, NCCL_PROTO) -> factor on the latency of a collective of a few tokens. Ring+LL is
#: from the history (86.5 to 94 tok/s), Ring+Simple from logs of two H200s, the others are
#: guesses between them: LL saves a memory fence, Simple costs one, a tree saves hops on many
#: nodes and costs some on one.
NCCL_LATENCY: dict[tuple[str | None, str | None], float] = {
    (None, None): 1.0,
    ("RING", "LL"): 0.65,
    ("RING", "LL128"): 0.78,
    ("RING", "SIMPLE"): 1.15,
    ("RING", None): 0.97,
    ("TREE", "LL"): 0.80,
    ("TREE", "LL128"): 0.88,
    ("TREE", "SIMPLE"): 1.10,
    ("TREE", None): 1.03,
    (None, "LL"): 0.74,
    (None, "LL128"): 0.84,
    (None, "SIMPLE"): 1.12,
    ("NVLS", None): 0.95,
    ("NVLS", "SIMPLE"): 0.98,
    ("NVLSTREE", None): 1.0,
}
#: Bytes sent for a byte of data: LL has a flag beside every word, LL128 one in 128 bytes
#: (NCCL's documentation of NCCL_PROTO).
NCCL_VOLUME: dict[str | None, float] = {None: 1.0, "LL": 2.0, "LL128": 128 / 120, "SIMPLE": 1.0}

#: Channels at which a collective of this size is fastest, and what each doubling or halving
#: costs. Guesses.
_BEST_CHANNELS = 16
_CHANNEL_SLOPE = 0.015

#: Share of positions whose guess an n-gram table has. Guess.
_NGRAM = Draft(accept=(0.35, 0.6, 0.6), second=0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nccl:
    """What NCCL's environment says.

    Attributes:
        algo: NCCL_ALGO in capitals; None if unset.
        proto: NCCL_PROTO in capitals; None if unset.
        channels: NCCL_MIN_NCHANNELS, or else NCCL_MAX_NCHANNELS; None if neither is set.
    """

    algo: str | None = None
    proto: str | None = None
    channels: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What of a launch the speed depends on.

    Attributes:
        draft: Name of the draft's quality curve; None without speculation.
        matches: Whether algorithm and draft belong together; if not, nothing is accepted.
        steps: Draft passes a step.
        topk: Guesses a draft pass keeps; 1 is a chain.
        draft_tokens: Tokens verified a step, the last sure one included.
        graphs: Whether CUDA graphs are used.
        nccl: NCCL's choices.
        draft_tp: GPUs that share one copy of the draft; None for all of them.
        tp: GPUs of the server; None is what the calibration holds for.
        custom_all_reduce: Whether SGLang's own all-reduce is allowed.
        overlap: Whether scheduling overlaps with the GPU's work.
    """

    draft: str | None = None
    matches: bool = True
    steps: int = 0
    topk: int = 1
    draft_tokens: int = 1
    graphs: bool = True
    nccl: Nccl = field(default_factory=Nccl)
    draft_tp: int | None = None
    tp: int | None = None
    custom_all_reduce: bool = True
    overlap: bool = True


def nccl_factors(nccl: Nccl) -> tuple[float, float]:
    """Return NCCL's factors on the latency and on the volume of a collective."""
    algo, proto = nccl.algo, nccl.proto
    latency = NCCL_LATENCY.get((algo, proto))
    if latency is None:  # an algorithm or protocol without an entry: take what is known of it
        latency = NCCL_LATENCY.get((None, proto), 1.0) * NCCL_LATENCY.get((algo, None), 1.05)
    if nccl.channels is not None:
        distance = abs(math.log2(max(nccl.channels, 1) / _BEST_CHANNELS))
        latency *= 1 - _CHANNEL_SLOPE + _CHANNEL_SLOPE * distance
    return latency, NCCL_VOLUME.get(proto, 1.0)


def target_ms(cal: Calibration, setting: Setting, tokens: int) -> float:
    """Return the time of one pass of the target over `tokens` tokens, in graphs.

    A mixture of experts reads E (1 - (1 - k/E)^n) of its E experts for n tokens that use k
    each, if tokens choose independently; the first k are in `base_ms`.

    Communication falls with NCCL's choices only in a speculative server: without speculation
    SGLang's custom all-reduce does it, unless that is disabled. That verification does go
    through NCCL is an assumption, from the history's gain by NCCL settings.
    """
    tp = setting.tp or cal.tp
    compute = cal.base_ms + cal.token_ms * (tokens - 1)
    if cal.experts:
        share = 1 - (1 - cal.experts_per_token / cal.experts) ** tokens
        compute += cal.expert_ms * (cal.experts * share / cal.experts_per_token - 1)
    compute *= 1 - cal.tp_scaling + cal.tp_scaling * cal.tp / tp
    return compute + _wire(tp) * _target_comm_ms(cal, setting, tokens)


def _target_comm_ms(cal: Calibration, setting: Setting, tokens: int) -> float:
    volume_ms = cal.comm_token_ms * (tokens - 1)
    if setting.draft is None and setting.custom_all_reduce:
        return cal.comm_ms + volume_ms
    latency, volume = nccl_factors(setting.nccl)
    penalty = cal.nccl_penalty if setting.draft is None else 1.0
    return cal.comm_ms * latency * penalty + volume_ms * volume


def _wire(tp: int) -> float:
    """Return the communication of `tp` GPUs by that of eight: each sends (n - 1) / n."""
    return (1 - 1 / tp) / (1 - 1 / 8)


def draft_ms(cal: Calibration, setting: Setting, batch: int = 1) -> float:
    """Return the time of one draft pass over `batch` requests, in graphs."""
    tp = setting.tp or cal.tp
    tokens_ms = cal.draft_token_ms * (batch * max(setting.topk, 1) - 1)
    width = min(setting.draft_tp or tp, tp)
    # A GPU's part of the work grows from one share of all to the whole draft.
    alone = (tp / width - 1) / (tp - 1) if tp > 1 else 0.0
    own_ms = cal.draft_ms * (1 + (cal.draft_one_factor - 1) * alone) + tokens_ms
    if width == 1:
        return own_ms
    latency, _ = nccl_factors(setting.nccl)
    return own_ms + _wire(width) * cal.draft_comm_ms * latency


def step_ms(
    cal: Calibration, setting: Setting, batch: int = 1, *, in_graph: bool | None = None
) -> float:
    """Return the time of one scheduler step of `batch` running requests.

    Args:
        cal: The machine.
        setting: The launch.
        batch: Running requests.
        in_graph: Whether a captured graph covers this batch; None is what the setting says.
    """
    gpu = target_ms(cal, setting, batch * setting.draft_tokens)
    host = cal.host_ms
    if not setting.overlap:
        gpu += cal.no_overlap_ms
    if setting.draft is not None:
        gpu += cal.overhead_ms + (cal.tree_ms if setting.topk > 1 else 0.0)
        if setting.draft != "ngram":
            gpu += setting.steps * draft_ms(cal, setting, batch)
            host += setting.steps * cal.host_draft_ms
    if setting.graphs if in_graph is None else in_graph:
        return gpu
    return math.hypot(gpu, host)


def prefill_ms(cal: Calibration, setting: Setting, tokens: int) -> float:
    """Return the time of a prefill of `tokens` uncached prompt tokens."""
    extra = cal.draft_ms if setting.draft is not None else 0.0
    return cal.prefill_ms + cal.prefill_token_ms * tokens + extra


def survival(
    cal: Calibration, setting: Setting, kind: str, exponent: float = 1.0
) -> tuple[float, ...]:
    """Return the chance that at least i + 1 draft tokens are accepted, for each index i.

    Args:
        cal: The machine.
        setting: The launch.
        kind: Kind of prompt.
        exponent: One prompt's own exponent on the acceptance; below 1 is easier.
    """
    if setting.draft is None or setting.draft_tokens < 2:
        return ()
    if not setting.matches:
        return (0.0,) * setting.steps
    draft = cal.drafts[setting.draft] if setting.draft != "ngram" else _NGRAM
    power = draft.kinds.get(kind, 1.0) * exponent
    accept = tuple(
        draft.accept[min(i, len(draft.accept) - 1)] ** power for i in range(setting.steps)
    )
    return tree_survival(
        accept, draft.second, draft.decay, topk=setting.topk, nodes=setting.draft_tokens - 1
    )


@lru_cache(maxsize=4096)
def tree_survival(
    accept: tuple[float, ...], second: float, decay: float, *, topk: int, nodes: int
) -> tuple[float, ...]:
    """Return, for each depth, the summed path probability of the best tree's nodes there.

    EAGLE's beam: `topk` guesses under the root, then at each level `topk` under each of the
    `topk` best of the level before; of all of them the `nodes` best are verified. At a node at
    most one child is right, so the sum at depth d is the chance that d tokens are accepted.
    """
    frontier = [1.0]
    candidates: list[tuple[float, int]] = []
    for depth, first in enumerate(accept):
        guesses = [first] + [(1 - first) * second * decay**r for r in range(topk - 1)]
        level = sorted((p * q for p in frontier for q in guesses), reverse=True)
        candidates += [(p, depth) for p in level]
        frontier = level[:topk]
    best = sorted(candidates, key=lambda node: (-node[0], node[1]))[:nodes]
    return tuple(math.fsum(p for p, at in best if at == depth) for depth in range(len(accept)))


def accept_length(cal: Calibration, setting: Setting, kind: str) -> float:
    """Return the mean tokens a verify step yields, the target's own included."""
    return 1.0 + math.fsum(survival(cal, setting, kind))


def request_s(
    cal: Calibration,
    setting: Setting,
    kind: str,
    *,
    prompt_tokens: int = 64,
    output_tokens: int = 500,
) -> float:
    """Return the mean time from send to last token of a request alone on the server.

    The prefill yields the first token. Steps for n tokens of mean m and second moment s by
    renewal theory: (n + (s / m - 1) / 2) / m, because the last step overshoots.
    """
    chances = survival(cal, setting, kind)
    mean = 1.0 + math.fsum(chances)
    second_moment = 1.0 + math.fsum((2 * i + 3) * p for i, p in enumerate(chances))
    steps = (output_tokens - 1 + (second_moment / mean - 1) / 2) / mean
    total_ms = prefill_ms(cal, setting, prompt_tokens) + steps * step_ms(cal, setting)
    return total_ms / 1000.0


def tok_s(
    cal: Calibration,
    setting: Setting,
    *,
    kinds: Sequence[str] = KINDS,
    prompt_tokens: int = 64,
    output_tokens: int = 500,
) -> float:
    """Return output tokens by time of one stream that sends one prompt of each kind."""
    total_s = math.fsum(
        request_s(cal, setting, k, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        for k in kinds
    )
    return output_tokens * len(kinds) / total_s
