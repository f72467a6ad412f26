"""TEST USE ONLY: lets an EAGLE draft run on SGLang's plain-torch attention; chains only."""

# mypy: ignore-errors
import importlib.abc
import importlib.util
import sys

import torch

_MODULE = "sglang.srt.speculative.draft_utils"


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices, req_to_token, seq_lens, out_cache_loc, pool_len, topk, steps
):
    width = topk * steps
    rows = zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    for i, (r, start) in enumerate(rows):
        out_cache_loc[i * width : (i + 1) * width] = req_to_token[r, start : start + width]


def build_tree_kernel_efficient_cpu(
    parent_list,
    top_scores_index,
    seq_lens,
    tree_mask,
    positions,
    retrieve_index,
    next_token,
    next_sibling,
    topk,
    steps,
    width,
    mode,
):
    if topk != 1:
        raise NotImplementedError("this sgl_kernel is a stand-in for chains")
    for b, length in enumerate(seq_lens.tolist()):
        at = torch.arange(width)
        positions[b * width : (b + 1) * width] = length + at
        retrieve_index[b] = b * width + at
        next_token[b, :-1] = at[1:]
    chain = torch.ones(width, width, dtype=torch.bool).tril()
    tree_mask.view(-1)[: len(seq_lens) * width * width] = chain.flatten().repeat(len(seq_lens))


class _Finder(importlib.abc.MetaPathFinder):
    """Gives SGLang's choice of draft backends one more."""

    def find_spec(self, name, path, target=None):
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_and_change(module):
            load(module)
            factory = module.DraftBackendFactory
            factory.create_decode_backend = _decode_backend
            factory.create_draft_extend_backend = _extend_backend

        spec.loader.exec_module = load_and_change
        return spec


def _decode_backend(factory):
    if factory.speculative_num_steps <= 1:
        return None
    return _Steps(factory.draft_model_runner, factory.speculative_num_steps)


def _extend_backend(factory):
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    return TorchNativeAttnBackend(factory.draft_model_runner)


class _Steps:
    """One backend a draft step; the i-th sees i + 1 tokens more than the request has."""

    def __init__(self, runner, steps):
        from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

        class Step(TorchNativeAttnBackend):
            step = 0

            def _run_sdpa_forward_decode(self, q, o, k, v, table, rows, lengths, *rest, **named):
                lengths = lengths + self.step + 1
                return super()._run_sdpa_forward_decode(
                    q, o, k, v, table, rows, lengths, *rest, **named
                )

        self.attn_backends = [Step(runner) for _ in range(steps - 1)]
        for i, backend in enumerate(self.attn_backends):
            backend.step = i

    def init_forward_metadata(self, forward_batch):
        for backend in self.attn_backends:
            backend.init_forward_metadata(forward_batch)


def install() -> None:
    """Wait for the import."""
    sys.meta_path.insert(0, _Finder())
