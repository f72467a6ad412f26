"""The executor on a Ray cluster: find the slots, hand out trials, survive lost nodes.

    slot:  starting -> idle <-> busy
               ^________|________|   its actor died: a new one on the same node
                                     Ray on this machine died: all of it anew

What takes a slot out of service for good is in `service.py`.
"""

import contextlib
import logging
import os
import time
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sweeper.cluster.base import Outcome
from sweeper.cluster.metrics import Publisher, SweepNumbers
from sweeper.cluster.service import Service
from sweeper.cluster.slot import Leftovers, Slot
from sweeper.cluster.trial import Assignment, Status, host_name, run_mark
from sweeper.engines.base import Engine
from sweeper.errors import SlotLost, UserError
from sweeper.serving import ProcessId

NAMESPACE = "sweeper"
#: Rows move through the object store, arrays never do; Ray's minimum is 75 MiB.
_OBJECT_STORE_BYTES = 100 * 2**20
_ACTOR_START_S = 120.0
_STATUS_S = 0.2
#: A slot answers from a thread of its own; one that does not for so long is stopped or stuck.
_SILENT_S = 120.0
_LOOK_S = 0.5


@dataclass(slots=True)
class _Held:
    """One slot as the driver sees it."""

    node: str
    actor: Any = None
    starts: int = 0
    starting: Any = None
    since_s: float = 0.0
    raylet: ProcessId | None = None
    assignment: Assignment | None = None
    ref: Any = None
    status_ref: Any = None
    asked_s: float = 0.0
    status: Status = field(default_factory=Status)


class RayExecutor:
    """All slots of one sweep.

    Args:
        engine: The adapter.
        study: The study's name.
        gpus: GPUs of one server.
        simulated: Whether GPUs are made up; only on this machine's own Ray.
        address: A cluster to join; None starts Ray on this machine, on loopback only.
        folder: The run's folder, absolute; see `connect`.
        silent_s: Real seconds after which a slot that does not answer is given up.

    Raises:
        UserError: The cluster cannot be reached, or no node has enough GPUs.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        study: str,
        gpus: int,
        simulated: bool,
        address: str | None,
        folder: str | None = None,
        silent_s: float = _SILENT_S,
    ) -> None:
        self._engine = engine
        self._study = study
        self._gpus = gpus
        self._simulated = simulated
        self._address = address
        self._silent_s = silent_s
        self._service = Service()
        self._slots: dict[str, _Held] = {}
        if folder is not None:
            self._leftovers = Leftovers(mark=run_mark(study, folder), logs=f"{folder}/logs")
        else:
            self._leftovers = Leftovers(mark=f"sweeper/{study}/")
        self.dashboard_url = _init(address, gpus if simulated else None)
        self._publisher = Publisher()
        try:
            self._find_slots()
            self._wait_for_all()
        except BaseException:
            self.close()
            raise

    def _find_slots(self) -> None:
        nodes = [n for n in ray.nodes() if n["Alive"]]  # type: ignore[no-untyped-call]
        fitting = [n for n in nodes if n["Resources"].get("GPU", 0) >= self._gpus]
        if self._gpus == 0:
            fitting = fitting[:1]
        if not fitting:
            has = ", ".join(f"{n['Resources'].get('GPU', 0):g}" for n in nodes) or "none"
            raise UserError(
                f"a server needs {self._gpus} GPUs on one node; "
                f"the nodes of the cluster have: {has}"
            )
        for index, node in enumerate(fitting):
            self._slots[f"slot-{index}"] = _Held(node=node["NodeID"])
        self._service.add(self._slots)
        for name in self._slots:
            self._start(name, self._leftovers)

    def _start(self, name: str, leftovers: Leftovers) -> None:
        """Start the slot's actor on its node; returns at once."""
        held = self._slots[name]
        held.actor = (
            ray.remote(Slot)
            .options(
                name=f"sweeper {self._study} {name} {os.getpid()}.{held.starts}",
                num_gpus=self._gpus,
                num_cpus=0,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=4,
                scheduling_strategy=NodeAffinitySchedulingStrategy(held.node, soft=False),
            )
            .remote(
                name,
                self._engine,
                leftovers,
                self._simulated,
                (host_name(), ProcessId.of(os.getpid())),
            )
        )
        held.starts += 1
        held.starting = held.actor.facts.remote()
        held.since_s = time.monotonic()

    def _wait_for_all(self) -> None:
        """Wait until each slot is ready or lost: one that starts ends all leftovers on its host."""
        while self._starting():
            ray.wait(self._starting(), num_returns=1, timeout=_LOOK_S)
            self._look_at_starts()
        if not self._idle():
            why = "; ".join(f"{n}: {w}" for n, w in self._service.lost.items())
            raise UserError(f"no slot could be started: {why}")

    def _starting(self) -> list[Any]:
        return [h.starting for h in self._slots.values() if h.starting is not None]

    def _idle(self) -> list[str]:
        return [
            name
            for name, held in self._slots.items()
            if held.actor is not None
            and held.starting is None
            and held.ref is None
            and name not in self._service.lost
        ]

    def _look_at_starts(self) -> None:
        for name, held in list(self._slots.items()):
            if held.starting is None:
                continue
            try:
                done, _ = ray.wait([held.starting], timeout=0)
                if done:
                    _, held.raylet = ray.get(held.starting)
                    held.starting = None
                elif time.monotonic() - held.since_s > _ACTOR_START_S:
                    raise GetTimeoutError(f"did not start in {_ACTOR_START_S:g} s")
            except RayError as error:
                self._lose_actor(name, f"did not start: {_first_line(error)}")

    def _lose_actor(self, name: str, why: str) -> None:
        """Note that a slot's actor is gone, and start another unless that is in vain."""
        held = self._slots[name]
        lost_log = held.assignment
        with contextlib.suppress(RayError):
            ray.kill(held.actor)
        held.actor = held.starting = held.ref = held.status_ref = held.assignment = None
        held.status = Status()
        self._service.died(name, why)
        if name in self._service.lost:
            return
        if self._address is None and held.raylet is not None and not held.raylet.alive():
            self._start_ray_anew()
            return
        leftovers = Leftovers(mark=f"{self._leftovers.mark}{name}/")
        if lost_log is not None:
            leftovers = Leftovers(
                mark=f"{run_mark(self._study, lost_log.folder)}{name}/",
                logs=f"{lost_log.folder}/{lost_log.log}",
            )
        self._start(name, leftovers)

    def _start_ray_anew(self) -> None:
        """Start Ray on this machine again; it has one node, so no slot is at work."""
        ray.shutdown()
        self.dashboard_url = _init(None, self._gpus if self._simulated else None)
        self._find_slots()

    def free_slots(self) -> list[str]:
        """Return the slots that are alive and idle; waits for one while all are starting."""
        self._look_at_starts()
        while not self._idle() and self._starting() and not self._busy():
            ray.wait(self._starting(), num_returns=1, timeout=_LOOK_S)
            self._look_at_starts()
        return self._idle()

    def _busy(self) -> dict[str, _Held]:
        return {name: held for name, held in self._slots.items() if held.ref is not None}

    def lost_slots(self) -> dict[str, str]:
        """Return the slots that are out of service."""
        return dict(self._service.lost)

    def submit(self, slot: str, assignment: Assignment) -> None:
        """Start a trial on an idle slot."""
        held = self._slots[slot]
        assert held.ref is None
        held.assignment = assignment
        held.ref = held.actor.run.options(
            name=f"trial {assignment.trial.number} on {slot}"
        ).remote(assignment)
        held.status = Status(number=assignment.trial.number)
        held.asked_s = time.monotonic()

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Return what ended."""
        running = {held.ref: name for name, held in self._busy().items()}
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
        try:
            record = ray.get(ref)
        except RayActorError as error:
            why = f"the actor died: {_first_line(error)}"
        except RayError as error:
            why = f"the trial's method failed: {_first_line(error)}"
        else:
            held.assignment = held.ref = held.status_ref = None
            held.status = Status()
            if record is not None:
                self._service.ended(slot, record)
            return Outcome(slot=slot, assignment=assignment, record=record)
        self._lose_actor(slot, why)
        return Outcome(slot=slot, assignment=assignment, lost=SlotLost(why))

    def status(self) -> dict[str, Status]:
        """Return what each busy slot is doing; a slot that does not answer keeps its last.

        One that has not answered for long is killed, and with it its server.
        """
        busy = self._busy()
        for held in busy.values():
            if held.status_ref is None:
                held.status_ref = held.actor.status.remote()
                held.asked_s = time.monotonic()
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
            elif time.monotonic() - held.asked_s > self._silent_s:
                ray.kill(held.actor)
        return {name: h.status for name, h in busy.items()}

    def publish(self, numbers: SweepNumbers) -> None:
        """Show how the sweep stands on Ray's dashboard and to Prometheus."""
        self._publisher.publish(numbers)

    def cancel(self) -> None:
        """Ask all running trials to stop."""
        for held in self._busy().values():
            held.actor.cancel.remote()

    def close(self) -> None:
        """Kill the actors, whose servers end with them, and leave or end Ray."""
        for held in self._slots.values():
            if held.actor is not None:
                with contextlib.suppress(RayError):
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
