"""The draft's process groups, and the scope in which SGLang takes one for the target's."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sweeper.draft_tp.plan import Plan


def make(target: Any, plan: Plan) -> Any:
    """Return this rank's draft group: a coordinator of SGLang's over `draft_size` ranks.

    Every rank of the target makes all groups, in one order, since making one is collective.

    Args:
        target: SGLang's coordinator of the target's TP group.
        plan: The sizes.
    """
    from sglang.srt.distributed import parallel_state
    from torch import distributed

    return parallel_state.init_model_parallel_group(
        group_ranks=plan.partition(list(target.ranks)),
        local_rank=target.local_rank,
        backend=distributed.get_backend(target.device_group),
        group_name="draft_tp",
    )


@contextmanager
def scope(group: Any) -> Iterator[None]:
    """Make `group` the TP group of everything that is built, captured or run inside.

    For SGLang of the `group` style. Its `patch_tensor_parallel_group` replaces the TP group
    only; the number of attention heads is read from the attention TP group, which without
    data-parallel attention is the same object and is replaced with it. Scopes may be nested.
    """
    from sglang.srt.distributed import parallel_state

    if parallel_state.get_tp_group() is group:
        yield
        return
    attention = parallel_state._ATTN_TP
    with parallel_state.patch_tensor_parallel_group(group):
        parallel_state._ATTN_TP = group
        try:
            yield
        finally:
            parallel_state._ATTN_TP = attention


def sizes_of(model: Any) -> set[int]:
    """Return the TP sizes that the layers of a built model were split by."""
    sizes = (getattr(module, "tp_size", None) for module in model.modules())
    return {size for size in sizes if isinstance(size, int)}
