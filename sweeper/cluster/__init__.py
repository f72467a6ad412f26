"""Where trials run: the Executor seam, on Ray or in this process. The only user of Ray.

Importing this package does not import Ray; `connect` does.
"""

import os
from collections.abc import Callable

from sweeper.cluster.access import (
    check_results_stay,
    choose_address,
    dashboard_line,
    prepare_token,
)
from sweeper.cluster.base import Assignment, Cancelled, Executor, Outcome, Status, SweepNumbers
from sweeper.cluster.inline import InlineExecutor
from sweeper.cluster.metrics import merged
from sweeper.cluster.nodes import Shape
from sweeper.cluster.strata import OnHardware
from sweeper.engines.base import Engine

__all__ = [
    "Assignment",
    "Cancelled",
    "Executor",
    "InlineExecutor",
    "OnHardware",
    "Outcome",
    "Status",
    "SweepNumbers",
    "check_results_stay",
    "choose_address",
    "connect",
    "dashboard_line",
    "merged",
]


def connect(
    engine: Engine,
    *,
    study: str,
    gpus: int,
    simulated: bool,
    address: str | None,
    folder: str | None = None,
    nodes: int = 1,
    slots_per_node: int = 1,
    hardware: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Executor:
    """Start Ray on this machine, or join the cluster at `address`, and take its slots.

    Args:
        engine: The adapter.
        study: The study's name.
        gpus: GPUs of one server, over all of its nodes.
        simulated: Whether GPUs are made up.
        address: A cluster to join; None starts Ray on this machine.
        folder: The run's folder, absolute: servers that an earlier driver of it left are ended.
            None ends those of every run of a study of this name.
        nodes: Nodes of one server.
        slots_per_node: Servers that share a node at most.
        hardware: Name of the GPUs, or a part of it, to which the sweep is confined; None takes
            slots of all kinds.
        say: Told what is waited for.
        stopped: Whether somebody wants an end of that.

    Raises:
        UserError: The cluster cannot be reached, no node has enough GPUs and none that has is
            on its way, or none has GPUs of that name.
    """
    # Ray reads these when it is imported, so it is imported after they are set.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        # Ray binds all interfaces unless told that this machine is no part of a cluster.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        prepare_token(os.environ)
    from sweeper.cluster.ray_executor import RayExecutor

    return RayExecutor(
        engine,
        study=study,
        shape=Shape(gpus=gpus, nodes=nodes, slots_per_node=slots_per_node),
        simulated=simulated,
        address=address,
        folder=folder,
        hardware=hardware,
        say=say,
        stopped=stopped,
    )
