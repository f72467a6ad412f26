"""Start a server, wait until it is ready, stop it, prove it gone.

    start() -> Server -> check(), request() -> stop()

`start` either returns a server that has generated a token and runs what was asked, or raises
with everything already cleaned up. A `Server` belongs to one thread. Whatever becomes of that
thread's process, the server ends with it (`supervisor.py`).
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from sweeper.clock import Clock
from sweeper.engines.base import ControlRequest, Engine
from sweeper.errors import Failure, FailureClass, LaunchFailed, ServerDied, Stage
from sweeper.records import Launch, Limits, ServerFacts
from sweeper.redaction import redact_mapping
from sweeper.serving import memory, ports
from sweeper.serving.control import Call, ControlAnswer
from sweeper.serving.environment import child_environment
from sweeper.serving.gpus import Gpus
from sweeper.serving.ports import Ports, reserve_ports
from sweeper.serving.process import (
    ServerProcess,
    StopReport,
    machine_failure,
    real_limit_s,
)
from sweeper.serving.processes import ProcessId
from sweeper.serving.readiness import Readiness, api_key
from sweeper.serving.starting import Phases, wait_until_ready
from sweeper.serving.supervised import Job

#: How long a stop waits for running requests to be aborted, in real seconds.
_ABORT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a server runs.

    Attributes:
        gpu_ids: Its GPUs, as NVML numbers them; empty for a server without.
        log_path: Where its output is appended; folders are made.
        mark: What all its processes carry in their environment, unlike any other server's.
        watch: Processes any of which takes the server with it: the driver, the raylet.
        cache_dir: One folder for compiled kernels, the same for all trials.
        deadline_s: Engine seconds that it may live at most; None for no limit.
    """

    gpu_ids: tuple[int, ...]
    log_path: Path
    mark: str
    watch: tuple[ProcessId, ...] = ()
    cache_dir: Path | None = None
    deadline_s: float | None = None


class Server:
    """A ready server. Made by `start`; as a context manager it stops at the end.

    Attributes:
        url: Its address, without a slash at the end.
        pid: Pid of its first process.
        facts: What it said it runs when it became ready.
        env: The whole environment it was started with, secrets hidden.
        phases_s: Engine seconds of its start: "start", and "start.STAGE" for each stage.
    """

    def __init__(
        self,
        process: ServerProcess,
        *,
        engine: Engine,
        launch: Launch,
        limits: Limits,
        facts: ServerFacts,
        env: Mapping[str, str],
        phases_s: Mapping[str, float],
    ) -> None:
        self._process = process
        self._engine = engine
        self._launch = launch
        self._limits = limits
        self.url = f"http://127.0.0.1:{process.block.port}"
        self.pid = process.pid
        self.facts = facts
        self.env = redact_mapping(env)
        self.phases_s = dict(phases_s)

    def check(self, *, wait_s: float = 0.0) -> None:
        """Look whether the server still lives, without asking it anything.

        Args:
            wait_s: Real seconds to wait for its end, where something makes it likely.

        Raises:
            ServerDied: It does not; all of it is gone.
        """
        self._process.pump(wait_s)
        self._raise_if_dead()

    def request(self, request: ControlRequest, *, timeout_s: float | None = None) -> ControlAnswer:
        """Send a control request and return the answer, whatever its status.

        Args:
            request: What is sent.
            timeout_s: Engine seconds; the limit for a probe by default.

        Raises:
            ServerDied: The server ended meanwhile; all of it is gone.
            TimeoutError: No answer came in time.
            ConnectionError: The connection broke though the server lives.
        """
        self.check()
        limit_s = self._limits.probe_s if timeout_s is None else timeout_s
        real_s = real_limit_s(self._process.clock, limit_s)
        with contextlib.closing(self._call(request, real_s)) as call:
            # The call ends by itself; the second is for one that drips.
            end = time.monotonic() + real_s + 1.0
            while not call.is_over and (left_s := end - time.monotonic()) > 0:
                self._process.pump(left_s, call.fileno())
                self._raise_if_dead()
            try:
                return call.answer()
            except ConnectionError:
                # A server that dies closes its sockets a moment before its end is heard.
                self._process.pump(0.2)
                self._raise_if_dead()
                raise

    def standing_still(self, failure: Failure) -> Failure:
        """Return the failure of a server that stands still, with what it is doing.

        Its stacks are kept beside its log; a compiler that it runs is named.
        """
        names = self._process.compilers
        self._process.note_stacks()
        if not names:
            return failure
        line = f"{failure.line}; it runs {', '.join(names)}, so a kernel may be at its first use"
        return replace(failure, line=line)

    def stop(self) -> StopReport:
        """Stop it in the engine's order and prove it gone; harmless when done twice.

        Running requests are aborted, the leader is asked to end, what is left is killed, and the
        GPU memory is waited for.
        """
        if not self._process.ended:
            self._process.pump(0)
            self._abort()
        return self._process.end(signum=self._engine.stop_signal())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _call(self, request: ControlRequest, real_s: float) -> Call:
        port = self._process.block.port
        return Call(port, request, timeout_s=real_s, key=api_key(self._launch))

    def _abort(self) -> None:
        """Have running requests aborted: a stop waits for them, however long they run."""
        with contextlib.closing(self._call(self._engine.abort_request(), _ABORT_S)) as call:
            end = time.monotonic() + _ABORT_S
            while not (call.is_over or self._process.exited):
                left_s = end - time.monotonic()
                if left_s <= 0:
                    return
                self._process.pump(left_s, call.fileno())

    def _raise_if_dead(self) -> None:
        if self._process.exited:
            self._process.end()
            raise ServerDied(self._process.failure(stage=Stage.SERVING))


def start(
    engine: Engine,
    launch: Launch,
    *,
    place: Place,
    gpus: Gpus,
    limits: Limits,
    clock: Clock,
    on_stage: Callable[[Stage], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
    block: Ports | None = None,
) -> Server:
    """Start a server and return it ready.

    Args:
        engine: How servers of this kind are started, asked and read.
        launch: What is started.
        place: Where.
        gpus: Tells the memory of the place's GPUs.
        limits: How long to wait.
        clock: Engine time.
        on_stage: Told each stage when it is reached.
        cancelled: Asked several times a second; true gives the start up.
        block: Ports to use; from the operating system by default. The server releases them.

    Raises:
        LaunchFailed: It did not become ready; nothing of it is left, or the error says what.
    """
    began_s = clock.now_s()
    try:
        block = block or reserve_ports()
    except OSError as error:
        raise LaunchFailed(machine_failure(str(error), FailureClass.PORT_CONFLICT)) from error
    try:
        process, env = spawn(engine, launch, place, gpus, limits, clock, block, cancelled)
    except BaseException:
        block.release()
        raise
    phases = Phases(clock, began_s, on_stage)
    readiness = Readiness(engine, launch, process, limits=limits, clock=clock)
    try:
        facts = wait_until_ready(process, readiness, phases, limits, cancelled)
    except LaunchFailed as error:
        raise LaunchFailed(error.failure, process.end().memory_held_by) from error
    except BaseException:
        process.end()
        raise
    finally:
        readiness.close()
    return Server(
        process,
        engine=engine,
        launch=launch,
        limits=limits,
        facts=facts,
        env=env,
        phases_s=phases.end(),
    )


def spawn(
    engine: Engine,
    launch: Launch,
    place: Place,
    gpus: Gpus,
    limits: Limits,
    clock: Clock,
    block: Ports,
    cancelled: Callable[[], bool],
) -> tuple[ServerProcess, dict[str, str]]:
    """Start the process, once there are room and ports for it."""
    room_s = real_limit_s(clock, limits.memory_free_s)
    held = memory.wait_for_room(gpus, place.gpu_ids, real_s=room_s, stopped=cancelled)
    if held:
        line = "; ".join(held)
        raise LaunchFailed(machine_failure(line, FailureClass.GPU_MEMORY_NOT_FREE))
    env = child_environment(
        os.environ,
        engine=engine.environment(launch),
        gpu_ids=place.gpu_ids,
        cpus=len(os.sched_getaffinity(0)),
        cache_dir=place.cache_dir,
    )
    try:
        place.log_path.parent.mkdir(parents=True, exist_ok=True)
        if place.cache_dir is not None:
            place.cache_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchFailed(machine_failure(str(error))) from error
    job = Job(
        argv=engine.argv(launch, port=block.port, nccl_port=block.nccl_port),
        env=env,
        cwd=Path.cwd(),
        log_path=place.log_path.resolve(),
        mark=place.mark,
        watch=place.watch,
        deadline_s=None if place.deadline_s is None else real_limit_s(clock, place.deadline_s),
    )
    for port in (block.port, block.nccl_port):
        if ports.is_taken(port):
            line = f"port {port} is taken by another process"
            raise LaunchFailed(machine_failure(line, FailureClass.PORT_CONFLICT))
    process = ServerProcess(
        job,
        block=block,
        reader=engine.log_reader(),
        echoes=tuple(
            f"{probe.method} {probe.path.split('?')[0]}"
            for probe in (engine.health_probe(), engine.ready_probe(), engine.info_probe())
        ),
        gpus=gpus,
        gpu_ids=place.gpu_ids,
        limits=limits,
        clock=clock,
    )
    return process, env
