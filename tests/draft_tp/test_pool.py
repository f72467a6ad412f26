"""What a token takes in a draft's KV pool, beside what SGLang counts for it."""

from dataclasses import dataclass

import pytest

from sweeper.draft_tp.hooks import kv_bytes, layer_bytes


@dataclass(frozen=True, slots=True)
class Draft:
    """The shape of an EAGLE-3 layer for Llama-3.1-8B."""

    num_hidden_layers: int = 1
    head_dim: int = 128
    v_head_dim: int = 128
    heads: int = 8

    def get_num_kv_heads(self, size: int) -> int:
        return max(1, self.heads // size)


class ByLayer:
    """SGLang's configurator of plain models: a token costs as much in each layer."""

    def _compute_cell_size(self, runner: object, layers: int) -> int:
        return 512 * layers


class Sparse:
    """One whose cost does not depend on the number of layers that it is given."""

    def _compute_cell_size(self, runner: object, layers: int) -> int:
        return 9000


class Windowed:
    """One with windows, which keeps what a full layer takes."""

    _full_per_token = 768


@pytest.mark.parametrize(("size", "expected"), [(8, 512), (4, 1024), (2, 2048), (1, 4096)])
def test_a_draft_of_less_tp_has_more_heads_on_each_gpu(size: int, expected: int) -> None:
    assert kv_bytes(Draft(), size, 2) == expected


@pytest.mark.parametrize(
    ("configurator", "expected"),
    [(ByLayer(), 512), (Windowed(), 768), (Sparse(), 0), (object(), 0)],
)
def test_what_sglang_counts_is_that_of_a_targets_layer(
    configurator: object, expected: int
) -> None:
    assert layer_bytes(configurator, None) == expected
