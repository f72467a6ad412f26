"""A cluster that has no fitting node yet, and an autoscaler that could add one: ask it, and wait.

    no autoscaler                                   -> refused at once
    asked, and for a minute nothing is on its way   -> refused
    a node is on its way                            -> waited for, half an hour at most

Ray has no public call that tells whether there is an autoscaler. Each version leaves its state with
the head: version 1 a text under a key, version 2 what its own SDK reads. A cluster without one has
the same process looking on; there a node's type is made of its id, and version 2 counts no rounds.
Ray is imported by what needs it: its settings must be there before.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

#: Real seconds for a cloud to start a GPU node and fetch its image.
LIMIT_S = 1800.0
#: Real seconds in which an autoscaler that can help has begun to; its rounds take some five.
PATIENCE_S = 60.0
#: Real seconds in which the process looking on has said something, after a head's start.
_FIRST_S = 12.0
_LOOK_S = 1.0
#: The key, and how types begin that are no types (Ray: ray_constants.py, autoscaler util.py).
_V1_KEY, _NO_TYPE = "__autoscaling_status", "node_"


class State(NamedTuple):
    """What an autoscaler says of itself.

    Attributes:
        exists: Whether there is one; None if nothing was said yet.
        on_its_way: Types of nodes that it adds.
    """

    exists: bool | None
    on_its_way: tuple[str, ...]


def bring(
    bundles: Sequence[Mapping[str, int]],
    fits: Callable[[], bool],
    say: Callable[[str], None],
    stopped: Callable[[], bool],
    *,
    state: Callable[[], State] | None = None,
    request: Callable[[Sequence[Mapping[str, int]]], None] | None = None,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Ask the cluster's autoscaler for nodes and wait until they are there.

    Args:
        bundles: What must be free, each on one node.
        fits: Whether it is there.
        say: Told once what is waited for.
        stopped: Whether somebody wants an end.
        state: Asks for the autoscaler's state; Ray's if None.
        request: Asks the autoscaler for bundles; Ray's if None.
        now_s: Real monotonic seconds.
        sleep: Waits so many.

    Returns:
        None once it fits, else why it will not.
    """
    look, ask, begun_s = state or _state, request or _request, now_s()
    while (seen := look()).exists is None and now_s() - begun_s < _FIRST_S:
        sleep(_LOOK_S)
    if not seen.exists:
        return "it has no autoscaler that could add one"
    ask(bundles)
    say(
        f"no node has room; its autoscaler was asked for one, up to {LIMIT_S / 60:g} min are waited"
    )
    begun_s = moved_s = now_s()
    why = None
    while not fits():
        seen = look()
        if seen.on_its_way:
            moved_s = now_s()
        if stopped():
            why = "interrupted while its autoscaler was waited for"
        elif now_s() - moved_s > PATIENCE_S:
            why = f"its autoscaler, asked {PATIENCE_S:g} s ago, adds none"
        elif now_s() - begun_s > LIMIT_S:
            why = f"its autoscaler has added none in {LIMIT_S / 60:g} min"
        if why is not None:
            ask([])
            return why
        sleep(_LOOK_S)
    return None


def withdraw() -> None:
    """Take back what was asked for, so that idle nodes may leave."""
    _request([])


def _request(bundles: Sequence[Mapping[str, int]]) -> None:
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[dict(bundle) for bundle in bundles])


def _state() -> State:
    from ray.autoscaler.v2.utils import is_autoscaler_v2
    from ray.experimental.internal_kv import _internal_kv_get

    return _state_v2() if is_autoscaler_v2() else state_v1(_internal_kv_get(_V1_KEY))


def state_v1(text: bytes | None) -> State:
    """Return what the text of version 1 says; None is no text yet."""
    said: dict[str, Any] = json.loads(text) if text else {}
    report = said.get("autoscaler_report")
    if not report:
        return State(None, ())
    types = {*report["active_nodes"], *(report.get("node_type_mapping") or {}).values()}
    coming = {*report["pending_launches"], *(node[-2] for node in report["pending_nodes"])}
    exists = any(not name.startswith(_NO_TYPE) for name in types | coming)
    return State(exists, tuple(sorted(coming)))


def _state_v2() -> State:
    import ray
    from ray.autoscaler.v2.sdk import get_cluster_status

    status = get_cluster_status(ray.get_runtime_context().gcs_address)
    rounds = int(status.stats.autoscaler_version or 0)
    coming = {launch.ray_node_type_name for launch in status.pending_launches}
    coming |= {node.ray_node_type_name for node in status.pending_nodes}
    return State(True if rounds else None, tuple(sorted(coming)))
