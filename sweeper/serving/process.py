"""A server's process with all that belongs to it: log, ports, GPU memory, and its end."""

from dataclasses import dataclass, replace

from sweeper.clock import Clock
from sweeper.engines.base import Ending, LogReader
from sweeper.errors import Failure, FailureClass, LaunchFailed, Stage
from sweeper.records import Limits
from sweeper.redaction import redact_text
from sweeper.serving import memory, ports
from sweeper.serving.gpus import Gpus
from sweeper.serving.log import LogTail
from sweeper.serving.ports import Ports
from sweeper.serving.stacks import compilers, note_stacks
from sweeper.serving.supervised import REASONS, Job, Supervised

#: A limit in engine seconds is never shorter than this in real ones, because starting a process
#: and a busy machine take real time however fast the simulated engine runs.
_LEAST_REAL_S = 10.0
#: The same for waiting on something that is already ending.
_LEAST_END_S = 2.0
#: Errors of exec that say that the program is not there (errno.h: ENOENT, EACCES, ENOEXEC).
_NO_PROGRAM = (2, 13, 8)
#: Classes that say no more than that a limit was passed or the owner killed it.
_NO_CAUSE = frozenset(
    {
        FailureClass.START_TIMEOUT,
        FailureClass.HANG,
        FailureClass.KILLED,
        FailureClass.UNKNOWN,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """How a server ended. Times are in engine seconds.

    Attributes:
        stop_s: From the wish to stop until none of its processes was left.
        memory_free_s: From then until the GPU memory was back.
        memory_held_by: Who still holds it, or which processes do not die, a line for each;
            empty when all is proven gone.
    """

    stop_s: float
    memory_free_s: float
    memory_held_by: tuple[str, ...] = ()


def real_limit_s(clock: Clock, limit_s: float, least_s: float = _LEAST_REAL_S) -> float:
    """Return a limit of engine seconds in real seconds, not below `least_s` where it scales."""
    return max(clock.real_s(limit_s), min(limit_s, least_s))


class ServerProcess:
    """One server, from its start to the proof that it is gone.

    Raises:
        LaunchFailed: Nothing could be started; nothing is left.
    """

    def __init__(
        self,
        job: Job,
        *,
        block: Ports,
        reader: LogReader,
        echoes: tuple[str, ...],
        gpus: Gpus,
        gpu_ids: tuple[int, ...],
        limits: Limits,
        clock: Clock,
    ) -> None:
        self.block = block
        self.clock = clock
        self._job = job
        self._reader = reader
        self._gpus = gpus
        self._gpu_ids = gpu_ids
        self._limits = limits
        self._report: StopReport | None = None
        self._killed_by_us = False
        self._foreign = False
        self._before_mib = memory.levels_mib(gpus, gpu_ids)
        self._tail = LogTail(job.log_path, reader, echoes=echoes)
        try:
            self._supervised = Supervised(job)
        except OSError as error:
            raise LaunchFailed(machine_failure(f"no supervisor: {error}")) from error

    @property
    def pid(self) -> int:
        """Pid of the server's leader; 0 before it was started."""
        leader = self._supervised.leader
        return leader.pid if leader is not None else 0

    @property
    def exited(self) -> bool:
        """Tell whether the leader has ended, as far as was heard."""
        return self._supervised.exited

    @property
    def ended(self) -> bool:
        """Tell whether `end` has done its work."""
        return self._report is not None

    @property
    def stage(self) -> Stage:
        """The stage that the log shows."""
        return self._reader.stage

    @property
    def last_line(self) -> str:
        """The log's last line, secrets hidden."""
        return redact_text(self._tail.last_line)

    def pump(self, timeout_s: float, *also: int) -> bool:
        """Wait for the server's end, for `also`, or `timeout_s` real seconds; read the log.

        Returns:
            Whether the log showed progress.
        """
        self._supervised.pump(timeout_s, *also)
        return self._tail.read()

    @property
    def compilers(self) -> tuple[str, ...]:
        """Names of the compilers that it runs now."""
        return compilers(self._supervised.supervisor)

    def note_stacks(self) -> None:
        """Write what its threads do beside its log, in a file that ends with `.stacks`."""
        note_stacks(
            self._job.log_path.with_suffix(".stacks"),
            root=self._supervised.supervisor,
            command=self._job.argv,
        )

    def has_stranger(self) -> bool:
        """Tell whether a process that is not the server's listens on its port."""
        return ports.stranger_on(self.block.port, self._supervised.supervisor) is not None

    def blame_stranger(self) -> None:
        """Remember that something else answered on the port."""
        self._foreign = True

    def end(self, *, signum: int | None = None) -> StopReport:
        """End all of it and wait until it is gone; the same report when called again.

        Args:
            signum: The signal that asks the leader to end; None kills at once.
        """
        if self._report is not None:
            return self._report
        owned, began_s = self._supervised, self.clock.now_s()
        owned.pump(0)
        if signum is not None and not owned.exited:
            polite_s = real_limit_s(self.clock, self._limits.stop_s, _LEAST_END_S)
            owned.signal(signum)
            owned.wait_until(lambda: owned.exited, polite_s)
        if not owned.exited:
            self._killed_by_us = True
            owned.kill()
        free_s = real_limit_s(self.clock, self._limits.memory_free_s, _LEAST_END_S)
        gone = owned.wait_until(lambda: owned.over, max(free_s, _LEAST_REAL_S))
        gone_s = self.clock.now_s()
        self._foreign |= gone and not self._killed_by_us and ports.accepts(self.block.port)
        owned.close()
        held = memory.wait_for_level(self._gpus, self._before_mib, real_s=free_s)
        if not gone:
            held += (f"processes below pid {owned.supervisor} do not die",)
        self._report = StopReport(
            stop_s=gone_s - began_s,
            memory_free_s=self.clock.now_s() - gone_s,
            memory_held_by=held,
        )
        self.block.release()
        self._tail.drain()
        self._tail.close()
        return self._report

    def failure(
        self,
        *,
        stage: Stage | None = None,
        passed: str | None = None,
        limit_s: float | None = None,
    ) -> Failure:
        """Return why it ended, after `end`.

        Args:
            stage: How far it had come, where that is known better than from the log.
            passed: The limit for which it was ended, in a few words. Then the failure is
                `start_timeout`, unless the log shows a cause.
            limit_s: That limit, engine seconds.
        """
        owned = self._supervised
        reached = stage or self.stage
        if owned.not_started is not None:
            number, text = owned.not_started
            kind = FailureClass.BUILD_MISSING if number in _NO_PROGRAM else FailureClass.UNKNOWN
            return Failure(kind=kind, stage=Stage.ARGS, line=f"cannot be started: {text}")
        code = owned.exit_code
        if owned.clean in REASONS:
            line = REASONS[owned.clean]
            return Failure(kind=FailureClass.KILLED, stage=reached, line=line, exit_code=code)
        found = self._reader.failure(
            Ending(
                exit_code=code,
                killed_by_us=self._killed_by_us,
                held_by=memory.held_by(self._gpus, self._gpu_ids, self._before_mib),
                foreign_on_port=self._foreign,
            )
        )
        if passed is not None and (found is None or found.kind in _NO_CAUSE):
            line = f"{passed}; the log's last line: {self.last_line or 'none'}"
            return Failure(
                kind=FailureClass.START_TIMEOUT, stage=reached, line=line, limit_s=limit_s
            )
        if found is not None:
            return replace(found, line=redact_text(found.line))
        if self._foreign:
            line = f"something else answers on port {self.block.port}"
            return Failure(kind=FailureClass.FOREIGN_SERVER, stage=reached, line=line)
        # The reader knows of no failure: an end in good order that nobody here asked for.
        orderly = self.stage is Stage.SHUTDOWN or code == 0
        kind = FailureClass.KILLED if orderly else FailureClass.UNKNOWN
        how = "was ended from outside" if orderly else "ended by itself"
        line = f"{how}, with code {code}; the log's last line: {self.last_line or 'none'}"
        return Failure(kind=kind, stage=reached, line=line, exit_code=code)


def machine_failure(line: str, kind: FailureClass = FailureClass.UNKNOWN) -> Failure:
    """Return a failure from before anything was started."""
    return Failure(kind=kind, stage=Stage.ARGS, line=redact_text(line))
