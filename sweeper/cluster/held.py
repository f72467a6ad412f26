"""One slot as the driver sees it, and the actors that it starts and ends for it."""

import contextlib
import os
import time
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from sweeper.cluster.assignment import Assignment, Status
from sweeper.cluster.nodes import KIND, Shape
from sweeper.cluster.slot import Follower, Owner, Slot
from sweeper.records import HostFacts
from sweeper.serving import ProcessId

#: How much of a node's mark of its kind is asked for: as little as Ray counts.
_SOME = 0.001


@dataclass(slots=True)
class Held:
    """One slot.

    Attributes:
        node: Its node; None where Ray chooses several.
        kind: What kind of GPUs these several must have; None if Ray does not know kinds.
        gpu_name: Name of GPUs that are made up; None for real ones.
        sharing: Slots that share its node.
        actor: The leader; None while there is none.
        followers: The actors of the other nodes.
        group: What keeps the nodes of a server over several.
        starts: How often it was started.
        starting: The answer to come from an actor that starts.
        since_s: When it was started.
        facts: What it said when it had started.
        raylet: The raylet above it.
        assignment: What it runs.
        ref: The record to come.
        status_ref: The status to come.
        asked_s: When it was asked for that.
        status: The last one.
    """

    node: str | None
    kind: str | None = None
    gpu_name: str | None = None
    sharing: int = 1
    actor: Any = None
    followers: list[Any] = field(default_factory=list)
    group: Any = None
    starts: int = 0
    starting: Any = None
    since_s: float = 0.0
    facts: HostFacts | None = None
    raylet: ProcessId | None = None
    assignment: Assignment | None = None
    ref: Any = None
    status_ref: Any = None
    asked_s: float = 0.0
    status: Status = field(default_factory=Status)

    @property
    def is_idle(self) -> bool:
        """Whether it has started and runs no trial."""
        return self.actor is not None and self.starting is None and self.ref is None

    def start(self, study: str, shape: Shape, owner: Owner) -> None:
        """Start the actors; returns at once, and `starting` becomes their answer.

        Ray never restarts them and never retries their methods.
        """
        common: dict[str, Any] = {
            "num_gpus": shape.gpus_per_node,
            "num_cpus": 0,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": 4,
        }
        name = f"sweeper {study} {owner.slot} {os.getpid()}.{self.starts}"
        if self.node is not None:
            place: Any = NodeAffinitySchedulingStrategy(self.node, soft=False)
        else:
            bundle = {"GPU": float(shape.gpus_per_node)}
            if self.kind is not None:
                bundle[f"{KIND}{self.kind}"] = _SOME
            bundles = [bundle] * shape.nodes
            self.group = placement_group(bundles, strategy="STRICT_SPREAD", name=name)
            place = self._bundle(0)
            self.followers = [
                ray.remote(Follower)
                .options(
                    name=f"{name} rank {rank}", scheduling_strategy=self._bundle(rank), **common
                )
                .remote(owner)
                for rank in range(1, shape.nodes)
            ]
        self.actor = (
            ray.remote(Slot)
            .options(name=name, scheduling_strategy=place, **common)
            .remote(owner, self.followers)
        )
        self.starts += 1
        self.starting = self.actor.facts.remote()
        self.since_s = time.monotonic()

    def has_started(self, limit_s: float) -> bool:
        """Tell whether the actors have started, and take what they say of where they are.

        Raises:
            RayError: They never will, or it takes longer than `limit_s`.
        """
        done, _ = ray.wait([self.starting], timeout=0)
        if done:
            self.facts, self.raylet = ray.get(self.starting)
            self.starting = None
        elif time.monotonic() - self.since_s > limit_s:
            raise GetTimeoutError(f"did not start in {limit_s:g} s")
        return bool(done)

    def _bundle(self, index: int) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=index)

    def end(self) -> None:
        """Kill the actors, whose processes end with them, and forget what they did."""
        for actor in (*self.followers, self.actor):
            if actor is not None:
                with contextlib.suppress(RayError):
                    ray.kill(actor)
        if self.group is not None:
            with contextlib.suppress(RayError):
                remove_placement_group(self.group)
        self.actor = self.group = None
        self.followers = []
        self.starting = self.ref = self.status_ref = self.assignment = None
        self.status = Status()

    def submit(self, slot: str, assignment: Assignment) -> None:
        """Start a trial."""
        assert self.ref is None
        self.assignment = assignment
        self.ref = self.actor.run.options(
            name=f"trial {assignment.trial.number} on {slot}"
        ).remote(assignment)
        self.status = Status(number=assignment.trial.number)
        self.asked_s = time.monotonic()

    def ask(self) -> None:
        """Ask the actor what it is doing, unless its answer is awaited."""
        if self.status_ref is None:
            self.status_ref = self.actor.status.remote()
            self.asked_s = time.monotonic()

    def is_silent(self, limit_s: float) -> bool:
        """Take the answer if it is there; tell whether it has been awaited for too long."""
        done, _ = ray.wait([self.status_ref], timeout=0)
        if not done:
            return time.monotonic() - self.asked_s > limit_s
        self.status_ref = None
        with contextlib.suppress(RayError):
            status = ray.get(done[0])
            self.status = status if status.number is not None else self.status
        return False

    def finish(self) -> None:
        """Forget the trial that has ended."""
        self.assignment = self.ref = self.status_ref = None
        self.status = Status()
