"""The executor on a Ray cluster: find the slots, hand out trials, survive lost nodes."""

import logging
import os
import time
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sweeper.cluster.base import Outcome
from sweeper.cluster.slot import Slot
from sweeper.cluster.trial import Assignment, Status, host_name
from sweeper.engines.base import Engine
from sweeper.errors import SlotLost, UserError
from sweeper.serving import ProcessId

NAMESPACE = "sweeper"
#: Rows move through the object store, arrays never do; Ray's minimum is 75 MiB.
_OBJECT_STORE_BYTES = 100 * 2**20
_ACTOR_START_S = 120.0
_STATUS_S = 0.2


@dataclass(slots=True)
class _Held:
    """One slot as the driver sees it."""

    actor: Any
    assignment: Assignment | None = None
    ref: Any = None
    status_ref: Any = None
    status: Status = field(default_factory=Status)
    lost: str | None = None


class RayExecutor:
    """All slots of one sweep.

    Args:
        engine: The adapter.
        study: The study's name.
        gpus: GPUs of one server.
        simulated: Whether GPUs are made up; only on this machine's own Ray.
        address: A cluster to join; None starts Ray on this machine, on loopback only.

    Raises:
        UserError: The cluster cannot be reached, or no node has enough GPUs.
    """

    def __init__(
        self, engine: Engine, *, study: str, gpus: int, simulated: bool, address: str | None
    ) -> None:
        self.dashboard_url = _init(address, gpus if simulated else None)
        self._slots: dict[str, _Held] = {}
        try:
            self._start_slots(engine, study, gpus, simulated)
        except BaseException:
            self.close()
            raise

    def _start_slots(self, engine: Engine, study: str, gpus: int, simulated: bool) -> None:
        nodes = [n for n in ray.nodes() if n["Alive"]]  # type: ignore[no-untyped-call]
        fitting = [n for n in nodes if n["Resources"].get("GPU", 0) >= gpus]
        if gpus == 0:
            fitting = fitting[:1]
        if not fitting:
            has = ", ".join(f"{n['Resources'].get('GPU', 0):g}" for n in nodes) or "none"
            raise UserError(
                f"a server needs {gpus} GPUs on one node; the nodes of the cluster have: {has}"
            )
        driver = (host_name(), ProcessId.of(os.getpid()))
        remote = ray.remote(Slot)
        for index, node in enumerate(fitting):
            name = f"slot-{index}"
            actor = remote.options(
                name=f"sweeper {study} {name} {os.getpid()}",
                num_gpus=gpus,
                num_cpus=0,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=4,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            ).remote(name, engine, study, simulated, driver)
            self._slots[name] = _Held(actor=actor)
        for name, held in self._slots.items():
            try:
                ray.get(held.actor.facts.remote(), timeout=_ACTOR_START_S)
            except (RayError, GetTimeoutError) as error:
                held.lost = f"did not start: {str(error).splitlines()[0]}"
                if len(self._slots) == 1:
                    raise UserError(f"{name} {held.lost}") from error

    def free_slots(self) -> list[str]:
        """Return the slots that are alive and idle."""
        return [n for n, h in self._slots.items() if h.ref is None and h.lost is None]

    def lost_slots(self) -> dict[str, str]:
        """Return the slots that are out of service."""
        return {n: h.lost for n, h in self._slots.items() if h.lost is not None}

    def submit(self, slot: str, assignment: Assignment) -> None:
        """Start a trial on an idle slot."""
        held = self._slots[slot]
        assert held.ref is None
        held.assignment = assignment
        held.ref = held.actor.run.options(
            name=f"trial {assignment.trial.number} on {slot}"
        ).remote(assignment)
        held.status = Status(number=assignment.trial.number)

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Return what ended."""
        running = {h.ref: name for name, h in self._slots.items() if h.ref is not None}
        if not running:
            time.sleep(timeout_s)
            return []
        done, _ = ray.wait(list(running), num_returns=1, timeout=timeout_s)
        if done:
            done, _ = ray.wait(list(running), num_returns=len(running), timeout=0)
        return [self._outcome(running[ref]) for ref in done]

    def _outcome(self, slot: str) -> Outcome:
        held = self._slots[slot]
        assignment, ref = held.assignment, held.ref
        assert assignment is not None
        held.assignment = held.ref = held.status_ref = None
        held.status = Status()
        try:
            return Outcome(slot=slot, assignment=assignment, record=ray.get(ref))
        except RayActorError as error:
            held.lost = f"the actor died: {_first_line(error)}"
        except RayError as error:
            held.lost = f"the trial's method failed: {_first_line(error)}"
        return Outcome(slot=slot, assignment=assignment, lost=SlotLost(held.lost))

    def status(self) -> dict[str, Status]:
        """Return what each busy slot is doing; a slot that does not answer keeps its last."""
        busy = {name: h for name, h in self._slots.items() if h.ref is not None}
        for held in busy.values():
            if held.status_ref is None:
                held.status_ref = held.actor.status.remote()
        refs = [h.status_ref for h in busy.values()]
        if refs:
            ray.wait(refs, num_returns=len(refs), timeout=_STATUS_S)
        for held in busy.values():
            done, _ = ray.wait([held.status_ref], timeout=0)
            if done:
                held.status_ref = None
                try:
                    status = ray.get(done[0])
                except RayError:
                    continue
                held.status = status if status.number is not None else held.status
        return {name: h.status for name, h in busy.items()}

    def cancel(self) -> None:
        """Ask all running trials to stop."""
        for held in self._slots.values():
            if held.ref is not None:
                held.actor.cancel.remote()

    def close(self) -> None:
        """Kill the actors, whose servers end with them, and leave or end Ray."""
        for held in self._slots.values():
            ray.kill(held.actor)
        ray.shutdown()


def _init(address: str | None, fake_gpus: int | None) -> str | None:
    """Start or join Ray; return the dashboard's address."""
    common: dict[str, Any] = {
        "namespace": NAMESPACE,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    try:
        if address is not None:
            context = ray.init(address=address, **common)
        else:
            context = ray.init(
                address="local",
                include_dashboard=True,
                dashboard_host="127.0.0.1",
                num_gpus=fake_gpus,
                object_store_memory=_OBJECT_STORE_BYTES,
                **common,
            )
    except (RayError, OSError, ValueError, RuntimeError, ConnectionError) as error:
        where = address or "on this machine"
        raise UserError(f"cannot start or join Ray {where}: {_first_line(error)}") from error
    url: str | None = context.dashboard_url
    return f"http://{url}" if url else None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
