"""Where slots are started: room on the nodes that there are, or that an autoscaler adds."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import ray

from sweeper.cluster import scaling
from sweeper.cluster.held import Held
from sweeper.cluster.nodes import Node, Shape, groups, living, refusal, room
from sweeper.errors import UserError


def alive() -> list[Node]:
    """Return the living nodes of the cluster."""
    return living(ray.nodes())  # type: ignore[no-untyped-call]


def make_room(
    shape: Shape, *, joined: bool, say: Callable[[str], None], stopped: Callable[[], bool]
) -> bool:
    """See to it that one server fits; return whether an autoscaler was asked for that.

    Args:
        shape: What a server needs.
        joined: Whether the cluster is another's, which may have an autoscaler.
        say: Told what is waited for.
        stopped: Whether somebody wants an end of that.

    Raises:
        UserError: It does not fit, and will not.
    """
    why = refusal(alive(), shape)
    if why is None:
        return False
    if joined:
        bundles = [{"GPU": shape.gpus_per_node}] * shape.nodes
        not_added = scaling.bring(bundles, lambda: refusal(alive(), shape) is None, say, stopped)
        if not_added is None:
            return True
        why = f"{why}; {not_added}"
    raise UserError(why)


def new_slots(
    nodes: Sequence[Node],
    shape: Shape,
    slots: Mapping[str, Held],
    lost: Collection[str],
    *,
    simulated: bool,
) -> list[Held]:
    """Return slots for all room that no slot has.

    Args:
        nodes: The living nodes.
        shape: What a server needs.
        slots: All slots so far.
        lost: Those out of service.
        simulated: Whether GPUs are made up.
    """

    def name(kind: str | None) -> str | None:
        if not simulated:
            return None
        return f"simulated {kind}" if kind else "simulated"

    if shape.nodes > 1:
        having = Counter(h.kind for n, h in slots.items() if n not in lost)
        return [Held(node=None, kind=k, gpu_name=name(k)) for k in groups(nodes, shape, having)]
    taken = Counter(h.node for h in slots.values() if h.node is not None)
    return [
        Held(node=node.id, sharing=sharing, gpu_name=name(node.kind))
        for node, sharing in room(nodes, shape, taken)
    ]
