"""The owner's end of a supervisor: starts it, speaks to it, hears what became of the server."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.serving import supervisor
from sweeper.serving.processes import ProcessId, sweep
from sweeper.serving.supervisor import MARK

#: Why a server was ended, when not by its owner: the word of `clean` -> a sentence.
REASONS = {
    "owner": "its owner went away",
    "watched": "a process that its life hangs on ended",
    "deadline": "its deadline passed",
    "signal": "its supervisor was told to end",
    "lost": "its supervisor was killed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a supervisor is told to run.

    Attributes:
        argv: The whole command line.
        env: The whole environment.
        cwd: The working directory.
        log_path: Where stdout and stderr are appended, absolute and without links.
        mark: What every process of it carries in its environment.
        watch: Processes any of which takes the server with it when it ends.
        deadline_s: Real seconds that it may live; None for no limit.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    log_path: Path
    mark: str
    watch: tuple[ProcessId, ...] = ()
    deadline_s: float | None = None

    def line(self) -> bytes:
        """Return it as the supervisor's first line of input."""
        fields = {
            "argv": list(self.argv),
            "env": dict(self.env),
            "cwd": str(self.cwd),
            "log_path": str(self.log_path),
            "mark": self.mark,
            "watch": [[one.pid, one.starttime] for one in self.watch],
            "deadline_s": self.deadline_s,
        }
        return json.dumps(fields).encode() + b"\n"


class Supervised:
    """A server under a supervisor. It ends when this object's owner ends, however that ends.

    Attributes:
        supervisor: Pid of the supervisor; 0 before it has spoken.
        leader: The server's first process; None before it was started.
        exit_code: Its return code as subprocess gives it; None while it lives or if unknown.
        exited: Whether the leader has ended.
        clean: Why it was ended, once nothing of it is left: "exited", "kill", or a key of
            `REASONS`.
        over: Whether the supervisor itself is gone, which comes after `clean`.
        not_started: Error number and text, if the command could not be executed.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._said = b""
        self.supervisor = 0
        self.leader: ProcessId | None = None
        self.exit_code: int | None = None
        self.exited = False
        self.clean: str | None = None
        self.over = False
        self.not_started: tuple[int, str] | None = None
        # A Python that lives by LD_LIBRARY_PATH needs it; nothing else can matter to it.
        kept = {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
        with job.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-E", "-X", "utf8", supervisor.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=kept | {MARK: job.mark},
                cwd="/",
                bufsize=0,
            )
        self._send(job.line())

    def pump(self, timeout_s: float, *also: int) -> None:
        """Wait until the supervisor says something, at most `timeout_s` real seconds.

        Args:
            timeout_s: How long; 0 only looks.
            also: Further descriptors that end the waiting when they become readable.
        """
        poller = select.poll()
        for descriptor in also:
            poller.register(descriptor, select.POLLIN)
        output = self._process.stdout
        listening = output is not None and not output.closed and not self.over
        if output is not None and listening:
            poller.register(output, select.POLLIN)
        ready = {
            descriptor for descriptor, _ in poller.poll(max(0, int(timeout_s * 1000 + 0.999)))
        }
        if output is not None and listening and output.fileno() in ready:
            self._hear(os.read(output.fileno(), 4096))

    def wait_until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `done`, at most `timeout_s` real seconds; tell whether it came."""
        end = time.monotonic() + timeout_s
        while not done():
            left_s = end - time.monotonic()
            if left_s <= 0 or self.over:
                return done()
            self.pump(left_s)
        return True

    def signal(self, number: int) -> None:
        """Send a signal to the server's leader, and to no other process of it."""
        self._send(f"signal {number}\n".encode())

    def kill(self) -> None:
        """Have all of it killed at once."""
        self._send(b"kill\n")

    def close(self) -> None:
        """Close the pipes; what still lives is killed by the supervisor."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()  # the supervisor has left; this is only the process it left

    def _send(self, data: bytes) -> None:
        if self._process.stdin is None:
            return
        try:
            while data:
                data = data[self._process.stdin.write(data) or 0 :]
        except OSError:
            pass  # it is gone, and the end of its output says so

    def _hear(self, data: bytes) -> None:
        self._said += data
        while b"\n" in self._said:
            line, self._said = self._said.split(b"\n", 1)
            self._understand(line.decode(errors="replace"))
        if not data:
            self.over = True
            if self.clean is None:
                self._lose()

    def _understand(self, line: str) -> None:
        match line.split():
            case ["started", own, pid, starttime]:
                self.supervisor = int(own)
                self.leader = ProcessId(int(pid), int(starttime))
            case ["failed", number, *text]:
                self.not_started = (int(number), " ".join(text))
                self.exited = True
                self.clean = "failed"
            case ["exited", code]:
                self.exit_code = int(code)
                self.exited = True
            case ["clean", why, _]:
                self.exited = True
                self.clean = why

    def _lose(self) -> None:
        """Do by the marks what a killed supervisor no longer can."""
        log_path = str(self._job.log_path)
        sweep(lambda mark: mark == self._job.mark, lambda path: path == log_path)
        self.exited = True
        self.clean = "lost"
