"""Rows of the target's tables for a draft that is split over fewer ranks.

An EAGLE draft takes the target's embedding, and sometimes its head. SGLang hands it the rank's own
tensor, which holds the rows of one of n parts of the vocabulary. A draft split over k < n ranks
needs 1/k of the rows, so they are gathered once at the start into the table that the draft was
built with: memory that is already counted when the KV pool is sized.
"""

from collections.abc import Callable
from typing import Any

#: Rows of each rank's part that are gathered at once, to keep the peak small: with 8 ranks and a
#: hidden size of 8,192 in 16 bits, half a gigabyte.
_ROWS = 4096
#: Rows that tell parts from copies.
_SAMPLE = 64


def lend(draft: Any, group: Any) -> None:
    """Make a draft model fill its own tables where it would take the target's tensors.

    Args:
        draft: A model of SGLang's LlamaForCausalLMEagle or LlamaForCausalLMEagle3.
        group: The torch process group of the target.
    """
    draft.set_embed = _embedding_setter(draft, group)
    draft.set_embed_and_head = _both_setter(draft, group)


def _embedding_setter(draft: Any, group: Any) -> Callable[[Any], None]:
    def set_embed(embed: Any) -> None:
        # As in the method it stands for: a draft of another width brings its own embedding.
        config = draft.config
        if getattr(config, "target_hidden_size", config.hidden_size) == config.hidden_size:
            fill(draft.model.embed_tokens, embed, group)

    return set_embed


def _both_setter(draft: Any, group: Any) -> Callable[[Any, Any], None]:
    def set_embed_and_head(embed: Any, head: Any) -> None:
        fill(draft.model.embed_tokens, embed, group)
        if draft.lm_head is not draft.model.embed_tokens:
            fill(draft.lm_head, head, group)

    return set_embed_and_head


def fill(table: Any, part: Any, group: Any) -> None:
    """Copy a layer's rows out of a table whose rows lie in equal parts over `group`.

    Args:
        table: SGLang's VocabParallelEmbedding or ParallelLMHead, of any TP size.
        part: This rank's rows; all of them where the table is not split.
        group: The torch process group that holds the parts, in the order of its ranks.

    Raises:
        RuntimeError: The two are no plain matrices of one width, as where one is quantised, or
            there are fewer rows than the layer has.
    """
    own = table.weight.data
    first = table.shard_indices.org_vocab_start_index
    last = table.shard_indices.org_vocab_end_index
    parts = 1 if _is_whole(part, group) else group.size()
    fits = own.dim() == part.dim() == 2 and own.shape[1] == part.shape[1]
    is_plain = own.is_floating_point() and part.is_floating_point()
    if not (fits and is_plain and last <= parts * part.shape[0]):
        raise RuntimeError(
            f"sweeper draft TP: rows {first} to {last} of the draft's table {tuple(own.shape)} of "
            f"{own.dtype} cannot be had from {parts} x {tuple(part.shape)} of {part.dtype}"
        )
    own[last - first :].zero_()
    if parts == 1:
        own[: last - first].copy_(part[first:last])
        return
    for start in range(0, part.shape[0], _ROWS):
        pieces = _gather(part[start : start + _ROWS], group)
        for rank, rows in enumerate(pieces):
            at = rank * part.shape[0] + start
            low, high = max(at, first), min(at + len(rows), last)
            if low < high:
                own[low - first : high - first].copy_(rows[low - at : high - at])


def _is_whole(part: Any, group: Any) -> bool:
    """Tell whether all ranks hold the same rows, from a sample of them."""
    pieces = _gather(part[:: max(1, part.shape[0] // _SAMPLE)], group)
    return bool((pieces == pieces[0]).all())


def _gather(piece: Any, group: Any) -> Any:
    """Return every rank's rows, shape [ranks, rows, width]."""
    import torch
    from torch import distributed

    piece = piece.detach().contiguous()
    pieces = piece.new_empty((group.size(), *piece.shape))
    # Bytes, since not every backend knows every 16-bit type.
    distributed.all_gather_into_tensor(
        pieces.view(torch.uint8).flatten(), piece.view(torch.uint8).flatten(), group=group
    )
    return pieces
