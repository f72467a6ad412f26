"""TEST USE ONLY: lets SGLang's plain-torch attention verify a chain of draft tokens."""

# mypy: ignore-errors
import importlib.abc
import importlib.util
import sys

import torch

_MODULE = "sglang.srt.layers.attention.torch_native_backend"


class _Finder(importlib.abc.MetaPathFinder):
    """Changes one method of one module when it is imported."""

    def find_spec(self, name, path, target=None):
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_and_change(module):
            load(module)
            backend = module.TorchNativeAttnBackend
            backend._run_sdpa_forward_extend = _with_chains(backend._run_sdpa_forward_extend)

        spec.loader.exec_module = load_and_change
        return spec


def _with_chains(extend):
    def run(
        self,
        query,
        output,
        k,
        v,
        req_to_token,
        req_pool,
        seq_lens,
        prefix,
        extended,
        *rest,
        **named,
    ):
        if prefix is None:  # a verify step: as many new tokens of each request as the chain has
            width = query.shape[0] // seq_lens.shape[0]
            prefix, extended = seq_lens, torch.full_like(seq_lens, width)
            seq_lens = seq_lens + width
        return extend(
            self,
            query,
            output,
            k,
            v,
            req_to_token,
            req_pool,
            seq_lens,
            prefix,
            extended,
            *rest,
            **named,
        )

    return run


def install() -> None:
    """Wait for the import.

    Raises:
        ImportError: It came before.
    """
    if _MODULE in sys.modules:
        raise ImportError(f"{_MODULE} was imported before its stand-in kernels")
    sys.meta_path.insert(0, _Finder())
