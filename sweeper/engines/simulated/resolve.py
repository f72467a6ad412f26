"""What SGLang 0.5.23 makes of its flags: silent rewrites, defaults and refusals.

Follows the release's `arg_groups/speculative_hook.py` and its neighbours as far as a sweep of
speculative decoding touches them; the other flags pass through unchanged. Flags stand in a
mapping by their Python name, as in `/server_info`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweeper.engines.simulated.calibrations import Calibration

_EAGLE = ("EAGLE", "EAGLE3")
_ALGORITHMS = (*_EAGLE, "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO")
_TREE_BACKENDS = ("flashinfer", "fa3", "triton")
_ADAPTIVE_STEPS = (0, 1, 3, 5, 7)


class Rejected(Exception):
    """A combination that SGLang refuses: a traceback and status 1.

    Args:
        kind: Name of the exception that SGLang raises.
        message: Its text; empty for a bare assertion.
    """

    def __init__(self, kind: str, message: str = "") -> None:
        super().__init__(f"{kind}: {message}" if message else kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Flags as the server runs them.

    Attributes:
        flags: Python name -> effective value.
        warnings: Log lines of the rewrites.
    """

    flags: Mapping[str, Any]
    warnings: tuple[str, ...]

    @property
    def speculating(self) -> bool:
        """Tell whether the server speculates."""
        return self.flags["speculative_algorithm"] is not None

    @property
    def decode_graphs(self) -> bool:
        """Tell whether decoding runs in CUDA graphs."""
        return bool(self.flags["cuda_graph_config"]["decode"]["backend"] != "disabled")

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        """The batch sizes that are captured."""
        return tuple(self.flags["cuda_graph_config"]["decode"]["bs"])


def resolve(args: Mapping[str, Any], calibration: Calibration) -> Resolved:
    """Return the effective flags.

    Raises:
        Rejected: SGLang refuses the combination.
    """
    flags = dict(args)
    warnings: list[str] = []
    _resolve_general(flags, calibration)
    _resolve_attention(flags, calibration)
    if flags["speculative_algorithm"] is not None:
        _resolve_speculation(flags, calibration, warnings)
    _resolve_graphs(flags, warnings)
    _check(flags)
    return Resolved(flags=flags, warnings=tuple(warnings))


def _resolve_general(flags: dict[str, Any], calibration: Calibration) -> None:
    flags["tokenizer_path"] = flags["tokenizer_path"] or flags["model_path"]
    flags["served_model_name"] = flags["served_model_name"] or flags["model_path"]
    flags["device"] = flags["device"] or "cuda"
    flags["page_size"] = flags["page_size"] or 1
    flags["chunked_prefill_size"] = flags["chunked_prefill_size"] or 8192
    if flags["mem_fraction_static"] is None:
        # 512 + 1.5 x chunk + tp / 8 x 1024 MB are kept back, and 10 GB at least
        # (memory_hook.py).
        reserved = 512 + 1.5 * flags["chunked_prefill_size"] + flags["tp_size"] / 8 * 1024
        total = calibration.gpu_gb * 1024
        flags["mem_fraction_static"] = round((total - max(reserved, 10240)) / total, 3)


def _resolve_attention(flags: dict[str, Any], calibration: Calibration) -> None:
    if flags["attention_backend"] is None:
        topk, page = flags["speculative_eagle_topk"], flags["page_size"]
        hopper = calibration.is_mla or topk is None or (topk == 1 and page == 1)
        flags["attention_backend"] = "fa3" if hopper else "flashinfer"
    if flags["enable_deterministic_inference"] and flags["tp_size"] > 1:
        flags["disable_custom_all_reduce"] = True


def _resolve_speculation(
    flags: dict[str, Any], calibration: Calibration, warnings: list[str]
) -> None:
    algorithm = flags["speculative_algorithm"].upper()
    algorithm = "EAGLE" if algorithm == "NEXTN" else algorithm
    flags["speculative_algorithm"] = algorithm
    if algorithm not in _ALGORITHMS:
        raise Rejected("ValueError", f"Unknown speculative algorithm name: {algorithm}")
    if algorithm in ("DFLASH", "DSPARK", "UNO"):
        raise Rejected(
            "NotImplementedError", f"the simulated server has no cost model for {algorithm}"
        )
    if flags["attention_backend"] == "flex_attention":
        raise Rejected(
            "AssertionError",
            "Speculative decoding is currently not supported with Flex Attention backend",
        )
    if flags["enable_dp_attention"] and algorithm in ("STANDALONE", "NGRAM"):
        raise Rejected(
            "ValueError",
            f"Currently {algorithm.lower()} speculative decoding does not support dp attention.",
        )
    if flags["max_running_requests"] is None:
        flags["max_running_requests"] = 48
        warnings.append(
            "Max running requests is reset to 48 for speculative decoding. You can override this "
            "by explicitly setting --max-running-requests."
        )
    if flags["device"] == "cpu" and not flags["disable_overlap_schedule"]:
        flags["disable_overlap_schedule"] = True
        warnings.append("Overlap schedule is not implemented for speculative decoding on CPU.")
    if flags["enable_mixed_chunk"] and algorithm != "EAGLE3":
        flags["enable_mixed_chunk"] = False
        warnings.append(
            "Mixed chunked prefill is disabled because of using "
            f"{algorithm.lower()} speculative decoding."
        )
    if flags["speculative_draft_model_path"] is not None:
        flags["speculative_draft_model_revision"] = (
            flags["speculative_draft_model_revision"] or "main"
        )
    if algorithm == "NGRAM":
        _resolve_ngram(flags)
    else:
        _resolve_shape(flags, calibration, algorithm, warnings)
    _check_speculation(flags, algorithm)


def _resolve_shape(
    flags: dict[str, Any], calibration: Calibration, algorithm: str, warnings: list[str]
) -> None:
    """Set steps, top-k and draft tokens as SGLang does, failing where it fails."""
    names = (
        "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens",
    )  # fmt: skip
    steps, topk, tokens = (flags[name] for name in names)
    if steps is None and topk is None and tokens is None:
        llama = calibration.llama_defaults and algorithm in _EAGLE
        steps, topk, tokens = (5, 4, 8) if llama else (3, 1, 4)
    elif steps is None:
        raise Rejected("AssertionError")
    if topk is None:
        raise Rejected("TypeError", "'>' not supported between instances of 'NoneType' and 'int'")
    if topk > 1 and flags["attention_backend"] == "trtllm_mha":
        raise Rejected(
            "ValueError", "trtllm_mha backend only supports topk = 1 for speculative decoding."
        )
    if topk == 1 and tokens != steps + 1:
        warnings.append(
            "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when "
            "speculative_eagle_topk == 1"
        )
        tokens = steps + 1
    flags.update(zip(names, (steps, topk, tokens), strict=True))


def _resolve_ngram(flags: dict[str, Any]) -> None:
    topk = flags["speculative_ngram_max_bfs_breadth"]
    tokens = flags["speculative_num_draft_tokens"] or 12
    flags["speculative_eagle_topk"] = topk
    flags["speculative_num_draft_tokens"] = tokens
    if flags["speculative_num_steps"] is None:
        flags["speculative_num_steps"] = tokens // topk
    if topk > 1 and flags["page_size"] > 1 and flags["attention_backend"] != "flashinfer":
        raise Rejected(
            "ValueError",
            f"speculative_eagle_topk({topk}) > 1 with page_size({flags['page_size']}) > 1 is "
            "unstable and produces incorrect results for paged attention backends. This "
            "combination is only supported for the 'flashinfer' backend.",
        )


def _check_speculation(flags: Mapping[str, Any], algorithm: str) -> None:
    topk, backend = flags["speculative_eagle_topk"], flags["attention_backend"]
    paged_tree = algorithm != "NGRAM" and topk > 1 and flags["page_size"] > 1
    if paged_tree and backend not in _TREE_BACKENDS:
        raise Rejected(
            "ValueError",
            "speculative_eagle_topk > 1 with page_size > 1 is only supported on "
            f"{_TREE_BACKENDS}; got attention_backend={backend!r}. Use page_size == 1 or one of "
            "those backends.",
        )
    if flags["speculative_use_rejection_sampling"]:
        if algorithm not in _EAGLE:
            raise Rejected(
                "NotImplementedError",
                "--speculative-use-rejection-sampling is only supported for EAGLE / EAGLE3 / "
                f"NEXTN, not speculative_algorithm={algorithm}.",
            )
        if topk != 1:
            raise Rejected(
                "ValueError",
                "--speculative-use-rejection-sampling requires --speculative-eagle-topk=1.",
            )
    window = flags["speculative_draft_window_size"]
    if window is not None and window <= 0:
        raise Rejected(
            "ValueError", f"--speculative-draft-window-size must be positive, got {window}."
        )
    steps = flags["speculative_num_steps"]
    # For trees it is switched off with a warning.
    adaptive = flags["speculative_adaptive"] and algorithm in _EAGLE and topk in {None, 1}
    if adaptive and steps not in _ADAPTIVE_STEPS:
        raise Rejected(
            "ValueError",
            f"--speculative-num-steps={steps} is not in the adaptive config candidate_steps "
            f"{list(_ADAPTIVE_STEPS)}. Pass one of those values.",
        )


def _resolve_graphs(flags: dict[str, Any], warnings: list[str]) -> None:
    """Set `cuda_graph_config` from the flags that feed it."""
    limit = flags["max_running_requests"]
    if flags["disable_cuda_graph"]:
        warnings.append(
            "'--disable-cuda-graph' is deprecated and will be removed in a future release. Use "
            "'--disable-decode-cuda-graph' and '--disable-prefill-cuda-graph' instead."
        )
    disabled = (
        flags["disable_cuda_graph"]
        or flags["disable_decode_cuda_graph"]
        or flags["cuda_graph_backend_decode"] == "disabled"
        or flags["attention_backend"] == "torch_native"
    )
    # By GPU memory of 60 to 160 GB (memory_hook.py).
    largest = flags["cuda_graph_max_bs_decode"] or (256 if flags["tp_size"] < 4 else 512)
    sizes = flags["cuda_graph_bs_decode"] or _default_sizes(
        largest, speculating=flags["speculative_algorithm"] is not None
    )
    if limit is not None:
        sizes = sorted(
            {s for s in sizes if s <= limit} | ({limit} if max(sizes) > limit else set())
        )
    prefill_off = (
        flags["disable_cuda_graph"]
        or flags["disable_prefill_cuda_graph"]
        or flags["cuda_graph_backend_prefill"] == "disabled"
    )
    flags["cuda_graph_config"] = {
        "decode": {
            "backend": "disabled" if disabled else flags["cuda_graph_backend_decode"] or "full",
            "max_bs": max(sizes),
            "bs": list(sizes),
        },
        "prefill": {
            "backend": "disabled" if prefill_off else "breakable",
            "max_bs": flags["chunked_prefill_size"],
        },
    }


def _default_sizes(largest: int, *, speculating: bool) -> list[int]:
    if speculating:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8)]
        sizes += range(272, largest + 1, 16)
    else:
        sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 497, 16)]
        sizes += range(512, largest + 1, 32)
    return sorted({s for s in sizes if s <= largest} | {largest})


def _check(flags: Mapping[str, Any]) -> None:
    if flags["tp_size"] * flags["pp_size"] % flags["nnodes"]:
        raise Rejected("AssertionError", "tp_size must be divisible by number of nodes")
    if flags["pp_size"] > 1 and flags["speculative_algorithm"] is not None:
        raise Rejected(
            "AssertionError",
            "Pipeline parallelism currently only supports EAGLE (non-multi-layer) speculative "
            "decoding",
        )
