"""Which slots there is room for."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.cluster.nodes import Node, Shape, groups, living, refusal, room


def node(number: int, gpus: int) -> Node:
    return Node(id=f"n{number}", gpus=gpus)


def test_nodes_are_read_as_ray_lists_them() -> None:
    listed = [
        {"Alive": True, "NodeID": "a", "Resources": {"GPU": 8.0, "accelerator_type:H200": 1.0}},
        {"Alive": False, "NodeID": "b", "Resources": {"GPU": 8.0}},
        {"Alive": True, "NodeID": "c", "Resources": {"CPU": 4.0}},
    ]
    assert living(listed) == [Node(id="a", gpus=8, kind="H200"), Node(id="c", gpus=0)]


@pytest.mark.parametrize(
    ("gpus", "shape", "has"),
    [
        ([], Shape(gpus=8), "8 GPUs on one node; the nodes of the cluster have: none"),
        ([4, 2], Shape(gpus=8), "8 GPUs on one node; the nodes of the cluster have: 4, 2"),
        ([8, 4], Shape(gpus=16, nodes=2), "8 GPUs on each of 2 nodes of one kind; .*: 8, 4"),
        ([16], Shape(gpus=16, nodes=2), "8 GPUs on each of 2 nodes of one kind; .*: 16"),
    ],
)
def test_what_fits_nowhere_is_refused_with_what_there_is(
    gpus: list[int], shape: Shape, has: str
) -> None:
    why = refusal([node(i, n) for i, n in enumerate(gpus)], shape)
    assert why is not None
    assert re.search(has, why)


@given(
    gpus=st.lists(st.integers(0, 16), max_size=8),
    need=st.integers(1, 8),
    most=st.integers(1, 4),
)
def test_slots_never_want_more_gpus_than_a_node_has(gpus: list[int], need: int, most: int) -> None:
    nodes = [node(i, n) for i, n in enumerate(gpus)]
    shape = Shape(gpus=need, slots_per_node=most)
    found = room(nodes, shape, {})
    counts = Counter(n.id for n, _ in found)
    for one in nodes:
        assert counts[one.id] == min(most, one.gpus // need)
    assert all(sharing == counts[n.id] for n, sharing in found)
    assert (refusal(nodes, shape) is None) == bool(found)
    # Nothing is taken twice; a node that joins is taken then.
    assert room(nodes, shape, counts) == []
    late = node(99, need)
    assert room([*nodes, late], shape, counts) == [(late, 1)]


def test_servers_without_gpus_keep_to_one_node() -> None:
    nodes, shape = [node(0, 0), node(1, 8)], Shape(gpus=0, slots_per_node=2)
    assert room(nodes, shape, {}) == [(nodes[0], 2), (nodes[0], 2)]
    assert room(nodes, shape, {"n0": 2}) == []


@given(gpus=st.lists(st.integers(0, 16), max_size=9), over=st.integers(2, 3))
def test_servers_over_several_nodes_are_as_many_as_have_nodes(gpus: list[int], over: int) -> None:
    nodes = [node(i, n) for i, n in enumerate(gpus)]
    shape = Shape(gpus=8 * over, nodes=over)
    count = len(groups(nodes, shape, {}))
    assert count == sum(n >= 8 for n in gpus) // over
    assert groups(nodes, shape, {None: count}) == []
    assert (refusal(nodes, shape) is None) == (count > 0)


def test_a_server_is_never_spread_over_unlike_nodes() -> None:
    shape = Shape(gpus=16, nodes=2)
    mixed = [Node(id=f"n{i}", gpus=8, kind=kind) for i, kind in enumerate(["H200", "A100"])]
    assert groups(mixed, shape, {}) == []
    assert refusal(mixed, shape) is not None
    more = [*mixed, Node(id="n2", gpus=8, kind="A100"), Node(id="n3", gpus=8, kind="H200")]
    assert sorted(map(str, groups(more, shape, {}))) == ["A100", "H200"]
    assert groups(more, shape, {"A100": 1}) == ["H200"]
    assert refusal(more, shape) is None
