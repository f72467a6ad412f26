"""How the server ends: by signal, by a scheduler's death, by a taken port."""

import asyncio
import os
import signal
from typing import NoReturn

from sweeper.clock import Clock
from sweeper.engines.simulated import tracebacks
from sweeper.engines.simulated.children import kill_children
from sweeper.engines.simulated.log import Log
from sweeper.engines.simulated.server import Server
from sweeper.engines.simulated.tracebacks import Death

#: Between SIGTERM and the first look for running requests, and between looks (logs).
_DRAIN_POLL_S = 4.0
#: From the last request to the end of the process (logs: 3 s).
_EXIT_S = 1.5
#: A graceful end of uvicorn on SIGINT (reference: 0.5 s).
_INTERRUPT_S = 0.4
#: Before the parent ends a tree whose child crashed; SGLANG_PYSPY_DUMP_BEFORE_CRASH=0 skips it.
_DIAGNOSTICS_S = 5.0


class Tree:
    """The process and its children.

    Args:
        clock: Engine time.
        log: The log.
        children: Names by process id.
    """

    def __init__(self, clock: Clock, log: Log, children: dict[int, str]) -> None:
        self.clock = clock
        self.log = log
        self.children = children
        self._ending = False

    def kill(self) -> NoReturn:
        """Kill all of it, this process included: return code -9, as after an OOM killer."""
        pid = os.getpid()
        self.log.line(
            f"kill_process_tree called: parent_pid={pid}, include_parent=True, pid={pid}"
        )
        kill_children(self.children)
        os.kill(pid, signal.SIGKILL)
        raise AssertionError("SIGKILL returned")

    def leave(self, code: int) -> NoReturn:
        """End the children and exit."""
        kill_children(self.children)
        os._exit(code)

    def die_starting(self, death: Death) -> NoReturn:
        """A scheduler raised before the server was up."""
        self.log.line(death.text(), rank=0)
        self.log.line("Received sigquit from a child process. It usually means the child failed.")
        self.kill()

    async def die_serving(self, server: Server, death: Death) -> NoReturn:
        """A scheduler raised while serving."""
        self.log.line(death.text(), rank=0)
        await self.crash(server)

    async def child_died(self, server: Server, name: str, pid: int, code: int) -> NoReturn:
        """A child was ended by a signal while serving."""
        self.log.line(
            f"Subprocess {name} (pid={pid}) crashed with exit code {code}. Triggering SIGQUIT for "
            "cleanup..."
        )
        await self.crash(server)

    async def crash(self, server: Server) -> NoReturn:
        """End as on SIGQUIT from a scheduler: silence, diagnostics, then kill."""
        server.scheduler.silence()
        self.log.line(
            "SIGQUIT received. signum=None, frame=None. It usually means one child failed."
        )
        if os.environ.get("SGLANG_PYSPY_DUMP_BEFORE_CRASH", "1") not in ("0", "false"):
            self.log.line("Sleeping 5 seconds before crash diagnostics...")
            await asyncio.sleep(self.clock.real_s(_DIAGNOSTICS_S))
        self.kill()

    def port_taken(self, host: str, port: int) -> None:
        """Log what uvicorn says of a port that it cannot have."""
        self.log.line(
            f"ERROR:    [Errno 98] error while attempting to bind on address ('{host}', {port}): "
            "address already in use"
        )

    def obey_signals(self, server: Server) -> None:
        """From now on drain on SIGTERM and end on SIGINT."""
        loop = asyncio.get_running_loop()
        if "stubborn" in server.faults:
            return
        tasks: set[asyncio.Task[None]] = set()

        def on(number: signal.Signals) -> None:
            if self._ending and number is signal.SIGTERM:
                return
            self._ending = True
            drain = self._drain(server) if number is signal.SIGTERM else self._interrupt(server)
            tasks.add(loop.create_task(drain))

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on, number)

    async def _drain(self, server: Server) -> None:
        if server.status == "unhealthy":
            self.log.line("Signal SIGTERM received while health check failed. Force exiting.")
            self.leave(0)
        self.log.line(
            "SIGTERM received. signum=None frame=None. Draining requests and shutting down..."
        )
        server.status = "draining"
        while True:
            await asyncio.sleep(self.clock.real_s(_DRAIN_POLL_S))
            left = [j.rid for j in (*server.scheduler.running, *server.scheduler.waiting)]
            if not left:
                break
            self.log.line(f"Gracefully exiting... Remaining number of requests {len(left)}.")
        self.log.line(
            "Gracefully exiting... Remaining number of requests 0. Remaining requests "
            "remaining_rids=[]."
        )
        await asyncio.sleep(self.clock.real_s(_EXIT_S + self._slow_s(server)))
        self.leave(0)

    async def _interrupt(self, server: Server) -> None:
        self.log.line("INFO:     Shutting down")
        server.status = "draining"
        if not server.scheduler.idle:
            self.log.line("INFO:     Waiting for connections to close. (CTRL+C to force quit)")
        while True:
            await asyncio.sleep(self.clock.real_s(_INTERRUPT_S))
            if server.scheduler.idle:
                break
        await asyncio.sleep(self.clock.real_s(self._slow_s(server)))
        self.log.line("INFO:     Application shutdown complete.")
        self.log.line(f"INFO:     Finished server process [{os.getpid()}]")
        self._die_of_interrupt()

    def _die_of_interrupt(self) -> NoReturn:
        """End with -2: uvicorn raises the signal that it caught once more when it is done.

        The real server's status is 0 only where it was started with SIGINT ignored, as a shell
        starts what it puts into the background.
        """
        pid = os.getpid()
        self.log.line(
            f"kill_process_tree called: parent_pid={pid}, include_parent=False, pid={pid}"
        )
        self.log.raw(tracebacks.INTERRUPTED)
        kill_children(self.children)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(pid, signal.SIGINT)
        raise AssertionError("SIGINT returned")

    @staticmethod
    def _slow_s(server: Server) -> float:
        if "slow_stop" not in server.faults:
            return 0.0
        return server.faults.argument("slow_stop", 60.0)
