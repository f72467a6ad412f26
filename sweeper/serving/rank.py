"""A process of a server that answers nobody: rank 1 and up of one that runs on several nodes.

start_rank() -> Rank -> until() -> close()

Whether the server is ready is rank 0's to tell; of this one only its life is known.
"""

import threading

from sweeper.clock import Clock
from sweeper.engines.base import Engine
from sweeper.errors import Failure, FailureClass, LaunchFailed
from sweeper.records import Launch, Limits
from sweeper.serving.gpus import Gpus
from sweeper.serving.ports import reserve_ports
from sweeper.serving.process import ServerProcess, StopReport, machine_failure
from sweeper.serving.server import Place, spawn

#: Real seconds in which a wish to stop is seen.
_LOOK_S = 0.2


class Rank:
    """A running process with all that belongs to it. Made by `start_rank`; one thread's."""

    def __init__(self, process: ServerProcess, stop_signal: int) -> None:
        self._process = process
        self._stop_signal = stop_signal

    def until(self, stopping: threading.Event) -> Failure | None:
        """Wait until somebody wants the end, or the process comes to one.

        Returns:
            Why it ended by itself; None if it still lives.
        """
        while not stopping.is_set():
            self._process.pump(_LOOK_S)
            if self._process.exited:
                self._process.end()
                return self._process.failure()
        return None

    def close(self) -> StopReport:
        """Stop it and prove it gone; harmless when done twice."""
        return self._process.end(signum=self._stop_signal)


def start_rank(
    engine: Engine, launch: Launch, *, place: Place, gpus: Gpus, limits: Limits, clock: Clock
) -> Rank:
    """Start the process; its launch says which rank it is and where the ranks meet.

    Raises:
        LaunchFailed: It could not be started; nothing is left.
    """
    try:
        block = reserve_ports()
    except OSError as error:
        raise LaunchFailed(machine_failure(str(error), FailureClass.PORT_CONFLICT)) from error
    try:
        process, _ = spawn(engine, launch, place, gpus, limits, clock, block, lambda: False)
    except BaseException:
        block.release()
        raise
    return Rank(process, engine.stop_signal())
