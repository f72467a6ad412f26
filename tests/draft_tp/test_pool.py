"""What a token takes in a draft's KV pool, beside what SGLang counts for it."""

from dataclasses import dataclass

import pytest

from sweeper.draft_tp.hooks import add_draft_bytes, kv_bytes, layer_bytes


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


@dataclass
class Capped:
    """A windowed one of 0.5.15, whose windows' pool has a size of its own: the rest is shared out."""

    _full_per_token: int = 768
    _full_layers_num: int = 18
    _draft_full_layers_num: float = 1
    _cell_size: float = 768 * 19

    def tokens(self, available: int) -> int:
        full = self._full_per_token * (self._full_layers_num + self._draft_full_layers_num)
        return int(available // full)


@dataclass
class Recomputed(Capped):
    """The one of 0.5.23, which adds up anew what it keeps."""

    def _recompute_cell_size(self) -> None:
        layers = self._full_layers_num + self._draft_full_layers_num
        self._cell_size = self._full_per_token * layers


@pytest.mark.parametrize("configurator", [Capped(), Recomputed()])
def test_pools_that_are_counted_by_full_layers_leave_room_for_the_draft(
    configurator: Capped,
) -> None:
    more, available = 1792, 10**9
    add_draft_bytes(configurator, more)
    assert configurator._cell_size == pytest.approx(768 * 19 + more)
    tokens = configurator.tokens(available)
    assert available - 768 * 19 < tokens * (768 * 19 + more) <= available


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
