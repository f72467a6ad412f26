"""One trial on this machine, without Ray: start, measure, stop, and a record whatever happens.

    Assignment -> start the client (it imports while the server loads)
               -> start the server, wait until it is ready        LaunchFailed
               -> each workload: warm-up, flush, repeats           ServerDied, BenchFailed
               -> stop, group gone, GPU memory back
               -> TrialRecord

Whose fault an error is decides the state: the setting's or the installation's is INFEASIBLE, the
machine's is FAILED.
"""

import contextlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from sweeper.bench.measure import Progress
from sweeper.bench.process import ClientProcess
from sweeper.clock import Clock
from sweeper.cluster.assignment import Assignment, Cancelled, Status, runnable
from sweeper.cluster.measuring import Measured, measure_workloads
from sweeper.cluster.turns import Turns
from sweeper.engines.base import Engine
from sweeper.errors import Failure, FailureClass, Fault, LaunchFailed, Stage, TrialError
from sweeper.judging.guard import ineffective
from sweeper.records import HostFacts, ServerFacts, TrialRecord, TrialState
from sweeper.serving import Gpus, Place, ProcessId, Server, start


def run_trial(
    assignment: Assignment,
    engine: Engine,
    host: HostFacts,
    gpus: Gpus,
    *,
    watch: tuple[ProcessId, ...] = (),
    on_status: Callable[[Status], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> TrialRecord:
    """Run one trial to its record.

    Args:
        assignment: What to run.
        engine: The adapter of the launch's engine.
        host: Facts of this slot.
        gpus: How to look at the GPUs.
        watch: Processes with which the server must end.
        on_status: Told what is going on.
        cancelled: Asked about once a second; True ends the trial.

    Raises:
        Cancelled: `cancelled` said so. The server is gone then.
    """
    run = _Run(assignment, engine, host, gpus, watch, on_status, cancelled)
    return run.record()


class _Run:
    """The state of one trial while it runs."""

    def __init__(
        self,
        assignment: Assignment,
        engine: Engine,
        host: HostFacts,
        gpus: Gpus,
        watch: tuple[ProcessId, ...],
        on_status: Callable[[Status], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self.assignment = assignment
        self.engine = engine
        self.host = host
        self.gpus = gpus
        self.watch = watch
        self.on_status = on_status
        self.cancelled = cancelled
        self.clock = Clock(assignment.time_scale)
        self.phases_s: dict[str, float] = {}
        self.measured = Measured()
        self.facts: ServerFacts | None = None
        self.left: str | None = None
        self.started_at = datetime.now(UTC).isoformat()

    def record(self) -> TrialRecord:
        """Run it, and say how it ended."""
        failure: Failure | None = None
        try:
            self._serve()
            failure = ineffective(self.measured.measurements)
        except TrialError as error:
            failure = error.failure
        except (Cancelled, SystemExit):
            raise
        except Exception as error:
            if self.cancelled():
                raise Cancelled from error
            self._note(traceback.format_exc())
            failure = Failure(
                kind=FailureClass.UNKNOWN,
                stage=Stage.AFTER_RUN,
                line=f"{type(error).__name__}: {error}",
            )
        if self.cancelled() and failure is not None:
            raise Cancelled
        return TrialRecord(
            trial=self.assignment.trial,
            state=TrialState.PRUNED
            if failure is None and self.measured.is_worse
            else state_of(failure),
            failure=failure,
            measurements=tuple(self.measured.measurements),
            requests=tuple(self.measured.requests),
            server=self.facts,
            host=self.host,
            started_at=self.started_at,
            phases_s=self.phases_s,
            log=self.assignment.log,
            reason=self.left,
        )

    def _serve(self) -> None:
        with ClientProcess.start(slot=min(self.host.gpu_ids, default=0)) as client:
            with self._turn(None):
                server = self._start()
            self.phases_s.update(server.phases_s)
            self.facts = server.facts
            try:
                with self._turn(server):
                    self._measure(client, server)
            finally:
                self._stop(server)

    def _start(self) -> Server:
        begun = self.clock.now_s()
        try:
            return start(
                self.engine,
                runnable(self.assignment),
                place=self._place(),
                gpus=self.gpus,
                limits=self.assignment.limits,
                clock=self.clock,
                on_stage=lambda stage: self._tell(stage, ""),
                cancelled=self.cancelled,
            )
        except LaunchFailed as error:
            self.phases_s["start"] = self.clock.now_s() - begun
            self._note_left(error.left)
            raise

    @contextlib.contextmanager
    def _turn(self, server: Server | None) -> Iterator[None]:
        """Wait for this slot's turn to start a server, or to measure the one that it has."""
        if not self.assignment.alone:
            yield
            return
        turns = Turns(lambda: self._check(server))
        begun = self.clock.now_s()
        self._tell(Stage.ARGS if server is None else Stage.READY, "waits for this node's others")
        with turns.starting() if server is None else turns.measuring():
            waited_s = self.clock.now_s() - begun
            self.phases_s["turn"] = self.phases_s.get("turn", 0.0) + waited_s
            yield

    def _measure(self, client: ClientProcess, server: Server) -> None:
        begun = self.clock.now_s()
        try:
            measure_workloads(
                self.assignment,
                self.engine,
                client,
                server,
                self.clock,
                into=self.measured,
                check=lambda: self._check(server),
                on_progress=self._progress,
            )
        finally:
            self.phases_s["measure"] = self.clock.now_s() - begun

    def _stop(self, server: Server) -> None:
        self._tell(Stage.SHUTDOWN, "")
        report = server.stop()
        self.phases_s["stop"] = report.stop_s
        self.phases_s["memory_free"] = report.memory_free_s
        self._note_left(report.memory_held_by)

    def _note_left(self, held_by: Sequence[str]) -> None:
        if held_by:
            # What was measured before counts; the slot is taken out of service for it.
            self.left = f"after the server's end: {'; '.join(held_by)}"

    def _check(self, server: Server | None) -> None:
        if self.cancelled():
            raise Cancelled
        if server is not None:
            server.check()

    def _place(self) -> Place:
        folder = Path(self.assignment.folder)
        return Place(
            gpu_ids=self.host.gpu_ids,
            log_path=folder / self.assignment.log,
            mark=self.assignment.mark(self.host.slot),
            watch=self.watch,
            cache_dir=folder / self.assignment.cache,
        )

    def _progress(self, progress: Progress) -> None:
        if progress.repeat < 0:
            detail = f"{progress.workload}: warm-up"
        elif progress.total is None:
            detail = f"{progress.workload}: {progress.done} requests done"
        else:
            detail = (
                f"{progress.workload}: pass {progress.repeat + 1} of {progress.repeats}, "
                f"prompt {min(progress.done + 1, progress.total)} of {progress.total}"
            )
        self._tell(Stage.SERVING, detail, progress.output_tok_s, progress.accept_length)

    def _tell(
        self,
        stage: Stage,
        detail: str,
        output_tok_s: float | None = None,
        accept_length: float | None = None,
    ) -> None:
        self.on_status(
            Status(
                number=self.assignment.trial.number,
                stage=stage,
                detail=detail,
                output_tok_s=output_tok_s,
                accept_length=accept_length,
            )
        )

    def _note(self, text: str) -> None:
        path = Path(self.assignment.folder) / self.assignment.log
        with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as log:
            log.write(f"\n[sweeper] {text}")


def state_of(failure: Failure | None) -> TrialState:
    """Return the state of a trial that ended with this failure, or with none."""
    if failure is None:
        return TrialState.COMPLETE
    if failure.policy.fault is Fault.MACHINE:
        return TrialState.FAILED
    return TrialState.INFEASIBLE
