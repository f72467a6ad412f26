"""The small process that owns one server, and ends it to its last descendant.

    python -I -S -E -X utf8 supervisor.py

    stdin   <- one line: the job as JSON; then commands: `signal N` (to the leader), `kill`
               end of file: the owner is gone
    stdout  -> `started SUPERVISOR LEADER STARTTIME` or `failed ERRNO TEXT`
               `exited CODE`         the leader's return code, as soon as it is known
               `clean WHY SECONDS`   nothing is left; the last line

    job: {argv, env, cwd, log_path, mark, watch: [[pid, starttime], ...], deadline_s}

It leaves its parent's list of children before anything else, because Ray kills the direct
children of a worker that ends, and so would kill the one process that can clean up. As a
subreaper it stays the ancestor of all that the server starts, of daemons with their own session
too. It is one thread: the kernel sends the server's death signal when the *thread* that forked
it dies. It uses the standard library only and is run without site-packages, so that it starts in
some 20 ms and no environment can change it.
"""

import contextlib
import ctypes
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

#: Environment variable that every process of a server inherits.
MARK = "SWEEPER_MARK"

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_OWNER, _REPORT = 0, 1
#: How often a watched process is looked at where the kernel has no pidfds (before 5.3).
_LOOK_S = 0.5


class ProcessStat(NamedTuple):
    """One line of /proc/PID/stat, as far as it is needed.

    Attributes:
        starttime: Clock ticks since boot; with the pid it names a process for good.
        alive: False for a zombie, unless other threads of it still run.
    """

    pid: int
    parent: int
    starttime: int
    alive: bool


def read_stat(pid: int) -> ProcessStat | None:
    """Return what /proc says of a process; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  (pathlib costs start time)
            text = file.read()
    except OSError:
        return None
    # The name before the last bracket may hold anything. Fields: proc(5), from the third on.
    fields = text[text.rindex(b")") + 2 :].split()
    gone = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
    return ProcessStat(pid, int(fields[1]), int(fields[19]), not gone)


def all_processes() -> list[ProcessStat]:
    """Return every process that /proc shows."""
    names = os.listdir("/proc")  # noqa: PTH208
    found = (read_stat(int(name)) for name in names if name.isdigit())
    return [stat for stat in found if stat is not None]


def descendants(root: int) -> list[ProcessStat]:
    """Return the living descendants of process `root`, itself not among them.

    Below 0 there are none: it is no process, but the parent of all those that have none, and
    the pid of a supervisor that has not spoken yet.
    """
    if root == 0:
        return []
    children: dict[int, list[ProcessStat]] = {}
    for stat in all_processes():
        children.setdefault(stat.parent, []).append(stat)
    found: list[ProcessStat] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        queue.extend(stat.pid for stat in below)
        found.extend(stat for stat in below if stat.alive)
    return found


def kill_process(pid: int, starttime: int, signum: int = signal.SIGKILL) -> bool:
    """Send a signal to exactly this process; False if it is gone or not ours to signal.

    Pids come round again within minutes, so the start time is compared after a pidfd holds the
    process.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError:
        handle = -1
    try:
        stat = read_stat(pid)
        if stat is None or stat.starttime != starttime:
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, signum)
        else:
            os.kill(pid, signum)
    except OSError:
        return False
    else:
        return True
    finally:
        if handle >= 0:
            os.close(handle)


class Supervisor:
    """Starts the job's server, waits for the first reason to end it, ends it, says so."""

    def __init__(self, wake: int) -> None:
        self._wake = wake
        self._selector = selectors.DefaultSelector()
        self._selector.register(wake, selectors.EVENT_READ, self._on_signal)
        self._selector.register(_OWNER, selectors.EVENT_READ, self._on_owner)
        self._commands = b""
        self._leader = 0
        self._exited = False
        self._why: str | None = None
        self._looked_at: list[tuple[int, int]] = []

    def run(self) -> None:
        """Own one server from the first line of stdin until nothing of it is left."""
        job = self._read_job()
        if job is None:
            return
        for pid, starttime in job["watch"]:
            self._watch(pid, starttime)
        if self._why is None:
            try:
                self._start(job)
            except (OSError, subprocess.SubprocessError) as error:
                number = error.errno if isinstance(error, OSError) else None
                _say(f"failed {number or 0} {job['argv'][0]}: {error}")
                return
        deadline_s = job["deadline_s"]
        end = float("inf") if deadline_s is None else time.monotonic() + deadline_s
        self._take_commands()
        while self._why is None:
            self._wait(end)
        began = time.monotonic()
        self._end_all()
        _say(f"clean {self._why} {time.monotonic() - began:.3f}")

    def _read_job(self) -> dict[str, Any] | None:
        while b"\n" not in self._commands:
            data = os.read(_OWNER, 65536)
            if not data:
                return None
            self._commands += data
        line, self._commands = self._commands.split(b"\n", 1)
        job: dict[str, Any] = json.loads(line)
        return job

    def _watch(self, pid: int, starttime: int) -> None:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            self._end("watched")
            return
        except OSError:
            self._looked_at.append((pid, starttime))
            return
        stat = read_stat(pid)
        if stat is None or stat.starttime != starttime:
            self._end("watched")
        self._selector.register(handle, selectors.EVENT_READ, lambda: self._end("watched"))

    def _start(self, job: dict[str, Any]) -> None:
        supervisor = os.getpid()

        def before_exec() -> None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != supervisor:  # it died before the line above
                os._exit(1)
            # A core of a server's address space would fill the disk and hold up its end.
            _, most = resource.getrlimit(resource.RLIMIT_CORE)
            resource.setrlimit(resource.RLIMIT_CORE, (0, most))

        log = os.open(job["log_path"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            leader = subprocess.Popen(
                job["argv"],
                env=job["env"] | {MARK: job["mark"]},
                cwd=job["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=before_exec,  # noqa: PLW1509  (there is one thread)
            )
        finally:
            os.close(log)
        leader.returncode = 0  # it is reaped here, not by Popen
        self._leader = leader.pid
        stat = read_stat(leader.pid)  # at least a zombie: only `_reap` takes it away
        _say(f"started {supervisor} {leader.pid} {stat.starttime if stat else 0}")
        self._reap()

    def _wait(self, end: float) -> None:
        """Handle what happens next."""
        left_s: float | None = None if end == float("inf") else max(0.0, end - time.monotonic())
        if self._looked_at:
            left_s = _LOOK_S if left_s is None else min(left_s, _LOOK_S)
        for key, _ in self._selector.select(left_s):
            handle: Callable[[], None] = key.data
            handle()
        if time.monotonic() >= end:
            self._end("deadline")
        for pid, starttime in self._looked_at:
            stat = read_stat(pid)
            if stat is None or not stat.alive or stat.starttime != starttime:
                self._end("watched")

    def _end(self, why: str) -> None:
        self._why = self._why or why

    def _on_owner(self) -> None:
        data = os.read(_OWNER, 4096)
        self._commands += data
        self._take_commands()
        if not data:
            self._end("owner")
            self._selector.unregister(_OWNER)

    def _take_commands(self) -> None:
        while b"\n" in self._commands:
            line, self._commands = self._commands.split(b"\n", 1)
            match line.split():
                case [b"signal", number] if self._leader and not self._exited:
                    os.kill(self._leader, int(number))  # unreaped, so the pid is still its own
                case [b"kill"]:
                    self._end("kill")

    def _on_signal(self) -> None:
        for number in os.read(self._wake, 512):
            if number == signal.SIGCHLD:
                self._reap()
            else:
                self._end("signal")

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._leader:
                self._exited = True
                _say(f"exited {os.waitstatus_to_exitcode(status)}")
                self._end("exited")

    def _end_all(self) -> None:
        """Kill until nothing is left: a process may fork while it is being looked for."""
        pause_s = 0.005
        while living := descendants(os.getpid()):
            for stat in living:
                kill_process(stat.pid, stat.starttime)
            for key, _ in self._selector.select(pause_s):
                if key.fd == self._wake:
                    self._on_signal()
                else:
                    self._selector.unregister(key.fd)
            # A process in the driver's hands may need seconds to die.
            pause_s = min(pause_s * 1.5, 0.2)
        self._reap()


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _say(line: str) -> None:
    # Where the owner is gone, what is left to do is the same.
    with contextlib.suppress(OSError):
        os.write(_REPORT, line.encode().replace(b"\n", b" ") + b"\n")


def main() -> int:
    """Leave the parent, then own the server whose job comes on stdin."""
    if os.fork():
        os._exit(0)
    os.setsid()
    # An owner may block signals, as Ray's workers do SIGINT, and a server would inherit that and
    # never hear that it is asked to stop.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    Supervisor(wake).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
