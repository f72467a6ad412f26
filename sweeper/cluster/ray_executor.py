"""The executor on a Ray cluster: find the slots, hand out trials, survive lost nodes.

    slot:  starting -> idle <-> busy
               ^________|________|   its actor died: a new one on the same node
                                     Ray on this machine died: all of it anew

What takes a slot out of service for good is in `service.py`.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from sweeper.cluster import placing, scaling
from sweeper.cluster.assignment import Assignment, Status, host_name, run_mark
from sweeper.cluster.base import Outcome
from sweeper.cluster.held import Held
from sweeper.cluster.joining import join, line_of
from sweeper.cluster.metrics import Publisher, SweepNumbers
from sweeper.cluster.nodes import Node, Shape
from sweeper.cluster.service import Service
from sweeper.cluster.slot import Leftovers, Owner
from sweeper.engines.base import Engine
from sweeper.errors import SlotLost, UserError
from sweeper.serving import ProcessId

_ACTOR_START_S = 120.0
#: A start that takes so long is told of.
_LONG_START_S = 15.0
#: A slot answers from a thread of its own; one that does not for so long is stopped or stuck.
_SILENT_S = 120.0
_LOOK_S = 0.5
#: Between two looks for nodes that have joined.
_JOINED_S = 5.0


class RayExecutor:
    """All slots of one sweep.

    Args:
        engine: The adapter.
        study: The study's name.
        shape: What one server needs.
        simulated: Whether GPUs are made up; on this machine's own Ray they need not be there.
        address: A cluster to join; None starts Ray on this machine, on loopback only.
        folder: The run's folder, absolute; see `connect`.
        hardware: Name of the GPUs, or a part of it, to take slots of only; None for all kinds.
        say: Told what is waited for.
        stopped: Whether somebody wants an end of that.
        silent_s: Real seconds after which a slot that does not answer is given up.

    Raises:
        UserError: The cluster cannot be reached, no node has enough GPUs and none that has is
            on its way, or none has GPUs of that name.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        study: str,
        shape: Shape,
        simulated: bool,
        address: str | None,
        folder: str | None = None,
        hardware: str | None = None,
        say: Callable[[str], None] = lambda _: None,
        stopped: Callable[[], bool] = lambda: False,
        silent_s: float = _SILENT_S,
    ) -> None:
        self._engine = engine
        self._study = study
        self._shape = shape
        self._simulated = simulated
        self._address = address
        self._say = say
        self._stopped = stopped
        self._silent_s = silent_s
        self._has_asked = False
        self._service = Service()
        self._slots: dict[str, Held] = {}
        self._looked_s = 0.0
        self._undone: list[Outcome] = []
        if folder is not None:
            self._leftovers = Leftovers(mark=run_mark(study, folder), logs=f"{folder}/logs")
        else:
            self._leftovers = Leftovers(mark=f"sweeper/{study}/")
        self._wanted = hardware
        #: The kinds of the sweep; None until all slots of its beginning have started.
        self._kinds: frozenset[str | None] | None = None
        self.dashboard_url = self._init()
        self._publisher = Publisher()
        try:
            self._has_asked = placing.make_room(
                shape, joined=address is not None, say=say, stopped=stopped
            )
            self._add_slots(placing.alive())
            self._wait_for_all()
        except BaseException:
            self.close()
            raise

    def _init(self) -> str | None:
        wanted = self._shape.gpus * self._shape.slots_per_node
        return join(self._address, wanted if self._simulated else None)

    def _add_slots(self, alive: list[Node]) -> None:
        """Start slots wherever there is room for more."""
        self._looked_s = time.monotonic()
        found = placing.new_slots(
            alive, self._shape, self._slots, self._service.lost, simulated=self._simulated
        )
        for one in found:
            name = f"slot-{len(self._slots)}"
            self._slots[name] = one
            self._service.add([name])
            self._start(name, self._leftovers)

    def _look_for_nodes(self) -> None:
        """Take nodes that have joined since the last look, now and then."""
        if self._address is None or time.monotonic() - self._looked_s < _JOINED_S:
            return
        alive = placing.alive()
        ids = {node.id for node in alive}
        for name, held in self._slots.items():
            if held.node is not None and held.node not in ids and held.ref is None:
                self._service.lose(name, "its node is gone")
                held.end()
        self._add_slots(alive)

    def _start(self, name: str, leftovers: Leftovers) -> None:
        """Start the slot's actors; returns at once."""
        held = self._slots[name]
        owner = Owner(
            slot=name,
            engine=self._engine,
            leftovers=leftovers,
            driver=(host_name(), ProcessId.of(os.getpid())),
            gpu_name=held.gpu_name,
            sharing=held.sharing,
        )
        held.start(self._study, self._shape, owner)

    def _wait_for_all(self) -> None:
        """Wait until each slot is ready or lost: one that starts ends all leftovers on its host.

        Raises:
            UserError: Not one is ready, or somebody wants an end of that.
        """
        begun_s, is_said = time.monotonic(), False
        while self._starting():
            if self._stopped():
                raise UserError("interrupted while slots were starting")
            if not is_said and time.monotonic() - begun_s > _LONG_START_S:
                names = ", ".join(self.starting_slots())
                self._say(f"waiting for {names} to start; others may have the GPUs")
                is_said = True
            ray.wait(self._starting(), num_returns=1, timeout=_LOOK_S)
            self._look_at_starts()
        idle = self._idle()
        if not idle:
            why = "; ".join(f"{n}: {w}" for n, w in self._service.lost.items())
            raise UserError(f"no slot could be started: {why}")
        self._kinds = frozenset(map(self.hardware_of, idle))

    def _check_hardware(self, name: str) -> None:
        """Leave out a slot of a kind that is not wanted, or that nothing was planned for."""
        held, has = self._slots[name], self.hardware_of(name)
        if self._wanted is not None and self._wanted.lower() not in (has or "").lower():
            why = f"it has {has or 'no GPUs'}, and {self._wanted} is asked for"
        elif self._kinds is not None and has not in self._kinds:
            why = f"{has} joined when the budget was divided; the next start takes it"
        else:
            return
        self._service.lose(name, why)
        held.end()

    def hardware_of(self, slot: str) -> str | None:
        """Return the name of a slot's GPUs; None for servers without."""
        facts = self._slots[slot].facts
        return facts.gpu_name if facts is not None else None

    def _starting(self) -> list[Any]:
        return [h.starting for h in self._slots.values() if h.starting is not None]

    def _idle(self) -> list[str]:
        lost = self._service.lost
        return [n for n, held in self._slots.items() if held.is_idle and n not in lost]

    def _look_at_starts(self) -> None:
        for name, held in list(self._slots.items()):
            if held.starting is None:
                continue
            try:
                if held.has_started(_ACTOR_START_S):
                    self._check_hardware(name)
            except RayError as error:
                self._lose_actor(name, f"did not start: {line_of(error)}")

    def _lose_actor(self, name: str, why: str) -> None:
        """Note that a slot's actor is gone, and start another unless that is in vain."""
        held = self._slots[name]
        lost_log = held.assignment
        held.end()
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
        """Start Ray on this machine again; it has one node, so its slots get the new one."""
        for name, held in self._slots.items():
            if held.assignment is not None:
                lost = SlotLost("Ray on this machine was lost")
                self._undone.append(
                    Outcome(slot=name, assignment=held.assignment, lost=lost, host=held.facts)
                )
        ray.shutdown()
        self.dashboard_url = self._init()
        self._publisher = Publisher()
        (node,) = placing.alive()
        for name, held in self._slots.items():
            held.end()
            held.node = node.id
            if name not in self._service.lost:
                self._start(name, self._leftovers)

    def free_slots(self) -> list[str]:
        """Return the slots that are alive and idle; waits for one while all are starting.

        The wait ends when somebody wants an end.
        """
        self._look_at_starts()
        self._look_for_nodes()
        while not (self._idle() or self._busy() or self._stopped()) and self._starting():
            ray.wait(self._starting(), num_returns=1, timeout=_LOOK_S)
            self._look_at_starts()
        return self._idle()

    def starting_slots(self) -> list[str]:
        """Return the slots whose actors start, anew where one has died, at the last look."""
        return [name for name, held in self._slots.items() if held.starting is not None]

    def _busy(self) -> dict[str, Held]:
        return {name: held for name, held in self._slots.items() if held.ref is not None}

    def lost_slots(self) -> dict[str, str]:
        """Return the slots that are out of service."""
        return dict(self._service.lost)

    def submit(self, slot: str, assignment: Assignment) -> None:
        """Start a trial on an idle slot."""
        self._slots[slot].submit(slot, assignment)

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Return what ended."""
        if self._undone:
            undone, self._undone = self._undone, []
            return undone
        running = {held.ref: name for name, held in self._busy().items()}
        if not running:
            time.sleep(timeout_s)
            return []
        done, _ = ray.wait(list(running), num_returns=1, timeout=timeout_s)
        if done:
            done, _ = ray.wait(list(running), num_returns=len(running), timeout=0)
        # One outcome may show that Ray is lost, and all slots with it.
        return [
            self._outcome(running[ref]) for ref in done if self._slots[running[ref]].ref is ref
        ]

    def _outcome(self, slot: str) -> Outcome:
        held = self._slots[slot]
        assignment, ref = held.assignment, held.ref
        assert assignment is not None
        try:
            record = ray.get(ref)
        except RayActorError as error:
            why = f"the actor died: {line_of(error)}"
        except RayError as error:
            why = f"the trial's method failed: {line_of(error)}"
        else:
            held.finish()
            if record is not None:
                self._service.ended(slot, record)
            return Outcome(slot=slot, assignment=assignment, record=record)
        self._lose_actor(slot, why)
        return Outcome(
            slot=slot, assignment=assignment, lost=SlotLost(why), host=self._slots[slot].facts
        )

    def status(self) -> dict[str, Status]:
        """Return what each busy slot is doing; a slot that does not answer keeps its last.

        One that has not answered for long is killed, and with it its server.
        """
        busy = self._busy()
        for held in busy.values():
            held.ask()
        # What is not there yet is read by the next call, half a second later.
        for held in busy.values():
            if held.is_silent(self._silent_s):
                ray.kill(held.actor)
        return {name: h.status for name, h in busy.items()}

    def publish(self, numbers: SweepNumbers) -> None:
        """Show how the sweep stands on Ray's dashboard and to Prometheus."""
        self._publisher.publish(numbers)

    def cancel(self) -> None:
        """Ask all running trials to stop."""
        for held in self._busy().values():
            assert held.assignment is not None
            held.actor.cancel.remote(held.assignment.trial.number)

    def close(self) -> None:
        """Kill the actors, whose servers end with them, and leave or end Ray."""
        for held in self._slots.values():
            held.end()
        if self._has_asked:
            scaling.withdraw()
        ray.shutdown()
