"""Servers that stand on the same GPUs at once: started together, measured one at a time.

It is what `scripts/side_by_side.py` is made of.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from sweeper.bench.process import ClientProcess
from sweeper.clock import Clock
from sweeper.cluster.assignment import Assignment, host_name, runnable
from sweeper.cluster.measuring import Measured, measure_workloads
from sweeper.cluster.trial import state_of
from sweeper.errors import Failure, TrialError, UserError
from sweeper.records import FlagValue, HostFacts, Limits, Trial, TrialRecord
from sweeper.serving import Gpus, Place, ProcessId, Server, start
from sweeper.study import Study

#: A server that stands still shall not use up the loan, nor the end of one that fails: the memory
#: that its neighbours hold does not come back.
LIMITS = Limits(progress_s=60.0, probe_s=60.0, memory_free_s=15.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A server that was started, or was not.

    Attributes:
        assignment: The trial; its number is the one of the first round.
        server: The server; None if it did not become ready.
        failure: Why it did not.
    """

    assignment: Assignment
    server: Server | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What all servers have in common.

    Attributes:
        study: The study.
        folder: The run's folder.
        flags: Flags of all servers that belong to no setting.
        env: Variables of all servers; a setting's own win.
        clock: Engine time.
        gpus: How to look at the GPUs.
        host: Where they run; its `gpu_ids` are all GPUs.
    """

    study: Study
    folder: Path
    flags: Mapping[str, FlagValue]
    env: Mapping[str, str]
    clock: Clock
    gpus: Gpus
    host: HostFacts

    def host_of(self, number: int) -> HostFacts:
        """Return the facts of server `number`, with its own GPUs."""
        own = share(self.host.gpu_ids, self.study.engine.gpus, number)
        return replace(self.host, gpu_ids=own)


def share(gpu_ids: Sequence[int], gpus: int, number: int) -> tuple[int, ...]:
    """Return the GPUs of server `number`: groups of `gpus` are dealt out in turn.

    Raises:
        UserError: There are fewer than one server needs.
    """
    groups = [tuple(gpu_ids[i : i + gpus]) for i in range(0, len(gpu_ids) - gpus + 1, gpus or 1)]
    if not gpu_ids or not gpus:
        return ()
    if not groups:
        raise UserError(f"a server takes {gpus} GPUs, and there are {len(gpu_ids)}")
    return groups[number % len(groups)]


def host_facts(gpus: Gpus, sharing: int) -> HostFacts:
    """Return the facts of this machine, all GPUs in it, `sharing` servers on them."""
    devices = gpus.devices()
    return HostFacts(
        host=host_name(),
        slot="side",
        gpu_name=devices[0].name if devices else None,
        gpu_ids=tuple(device.index for device in devices),
        driver_version=gpus.driver_version(),
        sharing=sharing,
    )


def stand(scene: Scene, trial: Trial) -> Standing:
    """Start a server and wait until it is ready."""
    study = scene.study
    simulation = study.engine.simulation.environment() if study.simulated else {}
    assignment = Assignment(
        trial=trial,
        workloads=study.workloads,
        limits=LIMITS,
        folder=str(scene.folder),
        log=f"logs/{trial.number:06d}.log",
        env=tuple({**simulation, **scene.env}.items()),
        place_flags=tuple(scene.flags.items()),
    )
    place = Place(
        gpu_ids=scene.host_of(trial.number).gpu_ids,
        log_path=scene.folder / assignment.log,
        mark=f"sweeper/{study.name}/side/{trial.number}",
        watch=(ProcessId.of(os.getpid()),),
        cache_dir=scene.folder / assignment.cache,
    )
    try:
        server = start(
            study.adapter,
            runnable(assignment),
            place=place,
            gpus=scene.gpus,
            limits=LIMITS,
            clock=scene.clock,
        )
    except TrialError as error:
        return Standing(assignment=assignment, failure=error.failure)
    return Standing(assignment=assignment, server=server)


@contextmanager
def standing(scene: Scene, planned: Sequence[Trial]) -> Iterator[list[Standing]]:
    """Start servers for all of `planned` at once; stop all when the block is left."""
    with ThreadPoolExecutor(len(planned)) as pool:
        found = list(pool.map(lambda trial: stand(scene, trial), planned))
        try:
            yield found
        finally:
            list(pool.map(lambda one: one.server and one.server.stop(), found))


def counters(server: Server, study: Study) -> dict[str, int]:
    """Return what a server with a draft TP of its own counts; nothing if it does not answer."""
    try:
        info = json.loads(server.request(study.adapter.info_probe()).text)
    except (TrialError, OSError, ValueError):
        return {}
    states = info.get("internal_states") or [{}]
    return {name: n for name, n in states[0].items() if name.startswith("draft_tp_")}


def measure_once(
    scene: Scene, standing: Standing, client: ClientProcess, number: int
) -> TrialRecord:
    """Measure a server once, and say how it ended; of one that never stood, why."""
    started_at, begun_s = datetime.now(UTC).isoformat(), scene.clock.now_s()
    server, failure, trial = standing.server, standing.failure, standing.assignment.trial
    done = Measured()
    phases_s: dict[str, float] = {}
    if server is not None:
        try:
            measure_workloads(
                standing.assignment,
                scene.study.adapter,
                client,
                server,
                scene.clock,
                into=done,
                check=server.check,
            )
        except TrialError as error:
            failure = error.failure
        phases_s = {**server.phases_s, "measure": scene.clock.now_s() - begun_s}
    return TrialRecord(
        trial=replace(trial, number=number),
        state=state_of(failure),
        failure=failure,
        measurements=tuple(done.measurements),
        requests=tuple(done.requests),
        server=None if server is None else server.facts,
        host=scene.host_of(trial.number),
        started_at=started_at,
        phases_s=phases_s,
        log=standing.assignment.log,
    )
