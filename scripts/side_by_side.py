"""Start a server for each known setting of a study on the same GPUs, and measure them in turn.

    python -m scripts.side_by_side SPACE --seconds 400 --flag max-total-tokens=60000 --flag sleep-on-idle

A sweep gives each server its GPUs alone, one after another. Where the model is small and the
machine is lent by the minute, that spends most of the loan on starts. Here all servers are started
at once; then one after another is measured while the others are idle, round after round until the
time is over: each setting is measured several times, and a drift of the machine meets all alike.
Servers of fewer GPUs than there are take them by turns. `--flag` is for every server; the KV pools
must fit on the GPUs side by side.

The rows are those of a sweep, in RUNS/STUDY-side; a server that fails is left out from then on.
"""

import argparse
import itertools
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
from sweeper.cluster.assignment import host_name
from sweeper.cluster.trial import state_of
from sweeper.config import find_space, load_study
from sweeper.errors import Failure, FailureClass, TrialError, UserError
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
from sweeper.serving import Place, ProcessId, Server, detect, start
from sweeper.store import Store, write_text
from sweeper.study import SGLANG_COMMAND, SIMULATED_COMMAND, Study

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
        host: Where they run; its `gpu_ids` are all GPUs.
    """

    study: Study
    folder: Path
    flags: Mapping[str, FlagValue]
    clock: Clock
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


def trials(study: Study) -> list[Trial]:
    """Return the baseline and the known settings, numbered."""
    baseline = Trial(
        study=study.name,
        number=0,
        purpose=Purpose.BASELINE,
        point={},
        launch=study.baseline_launch(),
        context=study.context,
    )
    known = (
        replace(baseline, number=n, purpose=Purpose.KNOWN, point=point, launch=study.launch(point))
        for n, point in enumerate(study.known, 1)
    )
    return [baseline, *known]


def stand(scene: Scene, trial: Trial) -> Standing:
    """Start a server and wait until it is ready."""
    study, log = scene.study, f"logs/{trial.number:06d}.log"
    command = SIMULATED_COMMAND if study.simulated else SGLANG_COMMAND
    env = study.engine.simulation.environment() if study.simulated else {}
    launch = replace(
        trial.launch,
        command=(sys.executable, *command[1:]),
        env={**env, **trial.launch.env},
        flags={**trial.launch.flags, **scene.flags},
    )
    place = Place(
        gpu_ids=scene.host_of(trial.number).gpu_ids,
        log_path=scene.folder / log,
        mark=f"sweeper/{study.name}/side/{trial.number}",
        watch=(ProcessId.of(os.getpid()),),
        cache_dir=scene.folder / "cache",
    )
    try:
        server = start(
            study.adapter, launch, place=place, gpus=detect(), limits=LIMITS, clock=scene.clock
        )
    except TrialError as error:
        return Standing(trial=trial, log=log, failure=error.failure)
    return Standing(trial=trial, log=log, server=server)


@contextmanager
def standing(scene: Scene) -> Iterator[list[Standing]]:
    """Start all servers at once; stop all when the block is left."""
    planned = trials(scene.study)
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
    """Measure a server once."""
    started_at, begun_s = datetime.now(UTC).isoformat(), scene.clock.now_s()
    server, failure = standing.server, standing.failure
    done: list[Measurement] = []
    sent: list[RequestTiming] = []
    try:
        for workload in scene.study.workloads if server is not None else ():
            assert server is not None
            found, requests = measure(
                client,
                url=server.url,
                model=standing.trial.launch.model,
                workload=workload,
                gpus=scene.study.engine.gpus,
                clock=scene.clock,
                limits=LIMITS,
                salt=standing.trial.salt,
                check=server.check,
            )
            done.append(found)
            sent.extend(requests)
    except TrialError as error:
        failure = error.failure
        if failure.kind is FailureClass.HANG and server is not None:
            failure = server.standing_still(failure)
    phases_s = {"measure": scene.clock.now_s() - begun_s}
    return TrialRecord(
        trial=replace(standing.trial, number=number),
        state=TrialState.COMPLETE if failure is None else state_of(failure),
        failure=failure,
        measurements=tuple(done),
        requests=tuple(sent),
        server=None if server is None else server.facts,
        host=scene.host_of(standing.trial.number),
        started_at=started_at,
        phases_s=phases_s if server is None else {**server.phases_s, **phases_s},
        log=standing.log,
    )


def run(
    study: Study,
    runs: Path,
    *,
    seconds: float,
    flags: Mapping[str, FlagValue],
    say: Callable[[str], None],
) -> int:
    """Start, measure and store; return how many settings failed.

    Args:
        study: Its baseline and its known settings are measured.
        runs: Folder of all results.
        seconds: No round begins that would end later; the first one always does.
        flags: Flags of all servers.
        say: Told a line for each measurement.
    """
    end_s = time.monotonic() + seconds
    folder = runs / f"{study.name}-side"
    store = Store(folder)
    store.create()
    write_text(folder / "study.yaml", study.text)
    clock = Clock(study.engine.simulation.time_scale if study.simulated else 1.0)
    host = _host(sharing=len(study.known) + 1)
    scene = Scene(study=study, folder=folder, flags=flags, clock=clock, host=host)
    with (
        ClientProcess.start() as client,
        standing(scene) as servers,
        (folder / "counters.jsonl").open("w", encoding="utf-8") as lines,
    ):
        alive, round_s = list(servers), 0.0
        for turn in itertools.count():
            begun_s = time.monotonic()
            if not alive or begun_s + round_s > end_s:
                break
            for server in list(alive):
                number = turn * len(servers) + server.trial.number
                record = one(scene, server, client, number)
                store.write(record)
                say(_line(record))
                if record.failure is not None or server.server is None:
                    alive.remove(server)
                else:
                    told = {"number": number, **counters(server.server, study)}
                    lines.write(json.dumps(told) + "\n")
                    lines.flush()
            round_s = time.monotonic() - begun_s
        return len(servers) - len(alive)


def _host(sharing: int) -> HostFacts:
    gpus = detect()
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
    parser.add_argument("--seconds", type=float, required=True, help="no round ends later")
    parser.add_argument(
        "--flag", type=_flag, action="append", default=[], help="NAME=VALUE, for every server"
    )
    options = parser.parse_args(argv)
    try:
        study = load_study(find_space(options.space))
        failed = run(
            study.resolved(gpus_present=bool(detect().devices())),
            options.runs,
            seconds=options.seconds,
            flags=dict(options.flag),
            say=lambda line: print(line, flush=True),  # noqa: T201 - a command's own output
        )
    except UserError as error:
        sys.stderr.write(f"side_by_side: {error}\n")
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
