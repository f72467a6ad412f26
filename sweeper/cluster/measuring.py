"""The workloads of one trial on its server, and what the server's log says of each."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sweeper.bench.measure import Progress, measure
from sweeper.bench.process import ClientProcess
from sweeper.clock import Clock
from sweeper.cluster.assignment import Assignment
from sweeper.engines.base import Engine, ServingLog
from sweeper.errors import BenchFailed, FailureClass
from sweeper.judging.pruning import certainly_worse
from sweeper.records import Measurement, RequestTiming
from sweeper.serving import Server, api_key
from sweeper.statistics.measurement import with_acceptance

#: Real seconds from broken streams to the end of a server that broke them by dying.
_DEATH_S = 1.0
_LOG_BLOCK = 1 << 20


@dataclass(slots=True)
class Measured:
    """What a trial has so far.

    Attributes:
        measurements: One for each workload that was sent to its end.
        requests: Theirs.
        is_worse: The setting is certainly slower than the best one, and the rest was left out.
    """

    measurements: list[Measurement] = field(default_factory=list)
    requests: list[RequestTiming] = field(default_factory=list)
    is_worse: bool = False


def measure_workloads(
    assignment: Assignment,
    engine: Engine,
    client: ClientProcess,
    server: Server,
    clock: Clock,
    *,
    into: Measured,
    check: Callable[[], None],
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> None:
    """Send all workloads of a trial, or as many as it takes to know that it is worse.

    Args:
        assignment: The trial, its workloads and its log.
        engine: The adapter of the launch's engine.
        client: What sends.
        server: What answers.
        clock: Engine time.
        into: Filled as workloads end, so that it keeps what was measured before an error.
        check: Asked about once a second; raises to break off.
        on_progress: Told what is going on.

    Raises:
        ServerDied: The server ended meanwhile.
        BenchFailed: It did not answer as it should.
    """
    trial = assignment.trial
    log = Path(assignment.folder) / assignment.log

    def stops(requests: Sequence[RequestTiming]) -> bool:
        rival = assignment.rival
        into.is_worse = rival is not None and certainly_worse(requests, rival)
        return into.is_worse

    try:
        for workload in assignment.workloads:
            part = _LogPart(log)
            measurement, requests = measure(
                client,
                url=server.url,
                model=trial.launch.model,
                workload=workload,
                gpus=trial.launch.gpus,
                clock=clock,
                limits=assignment.limits,
                salt=trial.salt,
                api_key=api_key(trial.launch),
                on_progress=on_progress,
                check=check,
                enough=stops,
                on_warm=part.begin,
            )
            into.measurements.append(_with_log(measurement, engine, part))
            into.requests.extend(requests)
            # After the last one nothing is left out, so the trial is complete.
            if into.is_worse or (workload is not assignment.workloads[-1] and stops(requests)):
                return
    except BenchFailed as error:
        # A server that dies breaks its streams a moment before its end is heard.
        server.check(wait_s=_DEATH_S)
        if error.failure.kind is FailureClass.HANG:
            raise BenchFailed(server.standing_still(error.failure)) from error
        raise


@dataclass(slots=True)
class _LogPart:
    """What is written to a log from a moment on."""

    path: Path
    since_bytes: int = 0

    def begin(self) -> None:
        """Leave out what is there by now."""
        self.since_bytes = self.path.stat().st_size if self.path.is_file() else 0


def _with_log(measurement: Measurement, engine: Engine, part: _LogPart) -> Measurement:
    """Return `measurement` with what the log says of it."""
    reader = engine.log_reader()
    if not isinstance(reader, ServingLog):
        return measurement
    with contextlib.suppress(OSError), part.path.open("rb") as log:
        log.seek(part.since_bytes)
        while block := log.read(_LOG_BLOCK):
            reader.feed(block)
        if reader.accept_length_mean is not None:
            # Only where the requests themselves do not tell.
            measurement = with_acceptance(measurement, reader.accept_length_mean, "log")
        return replace(
            measurement,
            no_graph_share=reader.share_without_graph,
            retractions=reader.retractions,
        )
    return measurement
