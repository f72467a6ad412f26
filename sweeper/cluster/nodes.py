"""Which slots the nodes of a cluster have room for; pure.

gpus 8                  one slot on each node of eight GPUs or more
gpus 4, slots_per_node 2    two on each node of eight, with different GPUs of one host
gpus 16, nodes 2        one slot on two nodes of eight, one process of the server on each
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Ray's resource that names a node's kind of GPU, "accelerator_type:H100".
KIND = "accelerator_type:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What one server needs.

    Attributes:
        gpus: GPUs in all; 0 for a server that needs none.
        nodes: Nodes that it is spread over, the same number of GPUs on each.
        slots_per_node: Servers that share one node at most.
    """

    gpus: int
    nodes: int = 1
    slots_per_node: int = 1

    @property
    def gpus_per_node(self) -> int:
        """GPUs that a server takes on one node."""
        return self.gpus // self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One living node.

    Attributes:
        id: Its id in the cluster.
        gpus: GPUs that it has, whoever uses them.
        kind: What Ray takes them for; None if it does not know.
    """

    id: str
    gpus: int
    kind: str | None = None


def living(nodes: Iterable[Mapping[str, Any]]) -> list[Node]:
    """Return the living nodes of what Ray lists."""
    found = []
    for node in nodes:
        if not node["Alive"]:
            continue
        resources = node["Resources"]
        kinds = sorted(name[len(KIND) :] for name in resources if name.startswith(KIND))
        found.append(
            Node(
                id=node["NodeID"],
                gpus=int(resources.get("GPU", 0)),
                kind=kinds[0] if kinds else None,
            )
        )
    return found


def refusal(nodes: Sequence[Node], shape: Shape) -> str | None:
    """Return why not even one slot fits, with what the cluster has; None if one does."""
    enough = Counter(n.kind for n in nodes if n.gpus >= shape.gpus_per_node)
    if max(enough.values(), default=0) >= shape.nodes:
        return None
    has = ", ".join(str(gpus) for gpus in sorted((n.gpus for n in nodes), reverse=True)) or "none"
    where = "one node" if shape.nodes == 1 else f"each of {shape.nodes} nodes of one kind"
    return f"a server needs {shape.gpus_per_node} GPUs on {where}; the nodes of the cluster have: {has}"


def room(nodes: Sequence[Node], shape: Shape, taken: Mapping[str, int]) -> list[tuple[Node, int]]:
    """Return where more slots fit: the node, and how many slots will share it, for each slot.

    Args:
        nodes: The living nodes.
        shape: What a server needs, on one node.
        taken: Node's id -> slots that it was given before, in service or not.
    """
    fitting = [n for n in nodes if n.gpus >= shape.gpus]
    if shape.gpus == 0:
        # Nothing would keep such servers from crowding all nodes; one node is measured.
        fitting = [n for n in fitting if n.id in taken] or fitting[:1]
    found = []
    for node in fitting:
        most = shape.slots_per_node
        if shape.gpus:
            most = min(most, node.gpus // shape.gpus)
        found += [(node, most)] * (most - taken.get(node.id, 0))
    return found


def groups(
    nodes: Sequence[Node], shape: Shape, having: Mapping[str | None, int]
) -> list[str | None]:
    """Return the kind of each further server over several nodes that fits, all of one kind.

    Args:
        nodes: The living nodes.
        shape: What a server needs.
        having: Kind of nodes -> servers that have theirs.
    """
    fitting = Counter(n.kind for n in nodes if n.gpus >= shape.gpus_per_node)
    return [
        kind
        for kind, count in fitting.items()
        for _ in range(count // shape.nodes - having.get(kind, 0))
    ]
