"""Start servers for many settings of a study on the same GPUs at once, and measure them in turn.

    python -m scripts.side_by_side SPACE --all --at-once 24 --seconds 1500 \\
        --flag max-total-tokens=60000 --flag sleep-on-idle

A sweep gives each server its GPUs alone, one after another. Where the model is small and the
machine is lent by the minute, that spends most of the loan on starts. Here a batch of servers is
started at once, the baseline's among them; then one after another is measured while the others
are idle, as many rounds as `--rounds` says, and the next batch follows while there is time.
Servers of fewer GPUs than there are take them by turns. `--flag` is for every server; the KV pools
must fit on the GPUs side by side.

The rows are those of a sweep, in RUNS/STUDY-side. The same command goes on where it was; a server
that fails is left out.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from sweeper.bench.measure import measure
from sweeper.bench.process import ClientProcess
from sweeper.clock import Clock
from sweeper.cluster.assignment import Assignment, host_name, runnable
from sweeper.cluster.trial import state_of
from sweeper.config import find_space, load_study
from sweeper.errors import Failure, FailureClass, TrialError, UserError
from sweeper.planning.plan import make_plan
from sweeper.records import (
    FlagValue,
    HostFacts,
    Limits,
    Measurement,
    Purpose,
    RequestTiming,
    Trial,
    TrialRecord,
    TrialState,
)
from sweeper.serving import Gpus, Place, ProcessId, Server, detect, start
from sweeper.store import Store, write_text
from sweeper.study import Study

#: A server that stands still shall not use up the loan.
LIMITS = Limits(progress_s=20.0, probe_s=20.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A server that was started, or was not.

    Attributes:
        trial: The setting; its number is the one of the first round.
        log: Its log below the run's folder.
        server: The server; None if it did not become ready.
        failure: Why it did not.
    """

    trial: Trial
    log: str
    server: Server | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What all servers have in common.

    Attributes:
        study: The study.
        folder: The run's folder.
        flags: Flags of all servers that belong to no setting.
        clock: Engine time.
        gpus: How to look at the GPUs.
        host: Where they run; its `gpu_ids` are all GPUs.
    """

    study: Study
    folder: Path
    flags: Mapping[str, FlagValue]
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


def todo(study: Study, records: Sequence[TrialRecord], *, everything: bool) -> list[Trial]:
    """Return the settings that have no row yet, in order, the baseline left out.

    Args:
        study: The study.
        records: Rows so far.
        everything: All settings of the space, not only the known ones.
    """
    done = {record.trial.launch.key for record in records}
    points = list(study.known)
    if everything:
        points += [point for point, _ in make_plan(study).settings.values()]
    made: dict[str, Trial] = {}
    for point in points:
        trial = replace(
            _baseline(study), purpose=Purpose.KNOWN, point=point, launch=study.launch(point)
        )
        if trial.launch.key not in done:
            made.setdefault(trial.launch.key, trial)
    return list(made.values())


def _baseline(study: Study) -> Trial:
    return Trial(
        study=study.name,
        number=0,
        purpose=Purpose.BASELINE,
        point={},
        launch=study.baseline_launch(),
        context=study.context,
    )


def stand(scene: Scene, trial: Trial) -> Standing:
    """Start a server and wait until it is ready."""
    study, log = scene.study, f"logs/{trial.number:06d}.log"
    assignment = Assignment(
        trial=trial,
        workloads=study.workloads,
        limits=LIMITS,
        folder=str(scene.folder),
        log=log,
        env=tuple(study.engine.simulation.environment().items()) if study.simulated else (),
        place_flags=tuple(scene.flags.items()),
    )
    place = Place(
        gpu_ids=scene.host_of(trial.number).gpu_ids,
        log_path=scene.folder / log,
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
        return Standing(trial=trial, log=log, failure=error.failure)
    return Standing(trial=trial, log=log, server=server)


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
    """Return what a server with a draft TP of its own counts."""
    answer = server.request(study.adapter.info_probe())
    info = json.loads(answer.text)
    states = info.get("internal_states") or [{}]
    return {name: n for name, n in states[0].items() if name.startswith("draft_tp_")}


def one(scene: Scene, standing: Standing, client: ClientProcess, number: int) -> TrialRecord:
    """Measure a server once, and say how it ended; of one that never stood, why."""
    started_at, begun_s = datetime.now(UTC).isoformat(), scene.clock.now_s()
    server, failure = standing.server, standing.failure
    done: list[Measurement] = []
    sent: list[RequestTiming] = []
    phases_s: dict[str, float] = {}
    if server is not None:
        failure = _measure(scene, standing.trial, server, client, done, sent)
        phases_s = {**server.phases_s, "measure": scene.clock.now_s() - begun_s}
    return TrialRecord(
        trial=replace(standing.trial, number=number),
        state=TrialState.COMPLETE if failure is None else state_of(failure),
        failure=failure,
        measurements=tuple(done),
        requests=tuple(sent),
        server=None if server is None else server.facts,
        host=scene.host_of(standing.trial.number),
        started_at=started_at,
        phases_s=phases_s,
        log=standing.log,
    )


def _measure(
    scene: Scene,
    trial: Trial,
    server: Server,
    client: ClientProcess,
    done: list[Measurement],
    sent: list[RequestTiming],
) -> Failure | None:
    """Fill `done` and `sent` workload by workload; return what broke it off, or None."""
    try:
        for workload in scene.study.workloads:
            found, requests = measure(
                client,
                url=server.url,
                model=trial.launch.model,
                workload=workload,
                gpus=scene.study.engine.gpus,
                clock=scene.clock,
                limits=LIMITS,
                salt=trial.salt,
                check=server.check,
            )
            done.append(found)
            sent.extend(requests)
    except TrialError as error:
        if error.failure.kind is FailureClass.HANG:
            return server.standing_still(error.failure)
        return error.failure
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is done.

    Attributes:
        everything: All settings of the space, not only the known ones.
        at_once: Servers of a batch, the baseline's among them.
        rounds: How often each server is measured.
        seconds: No batch and no round begins that would end later, the very first excepted.
    """

    everything: bool
    at_once: int
    rounds: int
    seconds: float


def run(
    study: Study,
    runs: Path,
    extent: Extent,
    *,
    flags: Mapping[str, FlagValue],
    say: Callable[[str], None],
) -> int:
    """Start, measure and store; return how many settings failed.

    Args:
        study: The study.
        runs: Folder of all results.
        extent: How much.
        flags: Flags of all servers.
        say: Told a line for each measurement.
    """
    folder = runs / f"{study.name}-side"
    store = Store(folder)
    store.create()
    write_text(folder / "study.yaml", study.text)
    records = store.records()
    left = todo(study, records, everything=extent.everything)
    clock = Clock(study.engine.simulation.time_scale if study.simulated else 1.0)
    gpus = detect()
    host = _host(gpus, sharing=min(extent.at_once, len(left) + 1))
    scene = Scene(study=study, folder=folder, flags=flags, clock=clock, gpus=gpus, host=host)
    number = max((record.trial.number for record in records), default=-1) + 1
    end_s, batch_s, failed = time.monotonic() + extent.seconds, 0.0, 0
    with ClientProcess.start() as client:
        while left and time.monotonic() + batch_s <= end_s:
            begun_s = time.monotonic()
            batch, left = left[: extent.at_once - 1], left[extent.at_once - 1 :]
            planned = [_baseline(study), *batch]
            numbered = [replace(trial, number=number + i) for i, trial in enumerate(planned)]
            for record in measured(scene, numbered, client, rounds=extent.rounds, end_s=end_s):
                store.write(record)
                say(_line(record))
                number = max(number, record.trial.number + 1)
                failed += record.failure is not None
            batch_s = time.monotonic() - begun_s
    return failed


def measured(
    scene: Scene, planned: Sequence[Trial], client: ClientProcess, *, rounds: int, end_s: float
) -> Iterator[TrialRecord]:
    """Start a batch, and yield each measurement of it."""
    with standing(scene, planned) as servers:
        alive, round_s = list(servers), 0.0
        for turn in range(rounds):
            begun_s = time.monotonic()
            if turn and begun_s + round_s > end_s:
                return
            for server in list(alive):
                number = server.trial.number + turn * len(servers)
                record = one(scene, server, client, number)
                if record.failure is not None or server.server is None:
                    alive.remove(server)
                elif told := counters(server.server, scene.study):
                    with (scene.folder / "counters.jsonl").open("a", encoding="utf-8") as lines:
                        lines.write(json.dumps({"number": number, **told}) + "\n")
                yield record
            round_s = time.monotonic() - begun_s


def _host(gpus: Gpus, sharing: int) -> HostFacts:
    devices = gpus.devices()
    return HostFacts(
        host=host_name(),
        slot="side",
        gpu_name=devices[0].name if devices else None,
        gpu_ids=tuple(device.index for device in devices),
        driver_version=gpus.driver_version(),
        sharing=sharing,
    )


def _line(record: TrialRecord) -> str:
    speeds = ", ".join(f"{m.workload} {m.output_tok_s:.1f} tok/s" for m in record.measurements)
    said = f"{record.failure.kind}: {record.failure.line}" if record.failure else speeds
    return f"{record.trial.number} {dict(record.trial.point) or 'baseline'}: {said}"


def _flag(text: str) -> tuple[str, FlagValue]:
    name, is_set, value = text.partition("=")
    return name.removeprefix("--"), value if is_set else True


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.side_by_side")
    parser.add_argument("space")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--seconds", type=float, required=True, help="the whole time")
    parser.add_argument("--all", action="store_true", help="all settings, not only the known")
    parser.add_argument("--at-once", type=int, default=16, help="servers of a batch (16)")
    parser.add_argument("--rounds", type=int, default=1, help="measurements of each server (1)")
    parser.add_argument(
        "--flag", type=_flag, action="append", default=[], help="NAME=VALUE, for every server"
    )
    options = parser.parse_args(argv)
    try:
        study = load_study(find_space(options.space))
        failed = run(
            study.resolved(gpus_present=bool(detect().devices())),
            options.runs,
            Extent(
                everything=options.all,
                at_once=max(2, options.at_once),
                rounds=max(1, options.rounds),
                seconds=options.seconds,
            ),
            flags=dict(options.flag),
            say=lambda line: print(line, flush=True),  # noqa: T201 - a command's own output
        )
    except UserError as error:
        sys.stderr.write(f"side_by_side: {error}\n")
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
