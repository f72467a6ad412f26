"""The measuring side's hold on the streaming client: start it, give it jobs, end it."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sweeper.bench.jobs import Advance, Job, Window, job_to_json, window_from_json
from sweeper.errors import BenchFailed, Failure, FailureClass, Stage

#: The client gives a sign of life each second; without one for so long it is stuck.
_SILENCE_S = 60.0
_CHECK_S = 0.5
_END_S = 2.0


def _nothing(*_: object) -> None:
    """Do nothing."""


class ClientProcess:
    """A streaming client in a process of its own.

    Use it as a context manager, or call `close`. It starts in about half a second, so start it
    while the server loads. A job that is abandoned takes the process with it, and so all its
    connections; the next job starts another. Not for several threads at once.

    Args:
        slot: Number of the slot on this machine, so that clients keep to different cores.
    """

    def __init__(self, *, slot: int = 0) -> None:
        self._slot = slot
        self._process: subprocess.Popen[bytes] | None = None
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()

    @classmethod
    def start(cls, *, slot: int = 0) -> Self:
        """Start a client and return without waiting for it."""
        client = cls(slot=slot)
        client._ensure()
        return client

    @property
    def pid(self) -> int | None:
        """The client's process id; None while none runs."""
        return self._process.pid if self._process else None

    def run(
        self,
        job: Job,
        *,
        on_advance: Callable[[Advance], None] = _nothing,
        check: Callable[[], None] = _nothing,
    ) -> Window:
        """Run one job and return what it brought.

        Args:
            job: What is sent.
            on_advance: Told how far the window is, about four times a second.
            check: Called at least once a second; what it raises abandons the job.

        Raises:
            BenchFailed: The cache could not be emptied, or the client ended or got stuck.
        """
        self._ensure()
        try:
            return self._run(job, on_advance, check)
        except BaseException:
            self._kill()
            raise

    def close(self) -> None:
        """End the client; it is gone when this returns."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None and not process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        self._kill()

    def __enter__(self) -> Self:
        self._ensure()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(
        self, job: Job, on_advance: Callable[[Advance], None], check: Callable[[], None]
    ) -> Window:
        process = self._process
        if process is None or process.stdin is None:
            raise _failed(FailureClass.CLIENT_LIMIT, "no streaming client runs")
        line = json.dumps(job_to_json(job)).encode() + b"\n"
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except BrokenPipeError:
            pass  # its end is seen below, with its exit status
        heard_s = time.monotonic()
        while True:
            check()
            try:
                event = self._events.get(timeout=_CHECK_S)
            except queue.Empty:
                if time.monotonic() - heard_s > _SILENCE_S:
                    what = f"the streaming client gave no sign of life for {_SILENCE_S:g} s"
                    raise _failed(FailureClass.CLIENT_LIMIT, what) from None
                continue
            heard_s = time.monotonic()
            if event is None:
                status = process.wait()
                what = f"the streaming client ended with status {status}"
                raise _failed(FailureClass.CLIENT_LIMIT, what)
            kind = event.pop("event")
            if kind == "advance":
                on_advance(Advance(**event))
            elif kind == "window":
                return window_from_json(event)
            elif kind == "refused":
                stood = FailureClass.HANG if event["stalled"] else FailureClass.UNKNOWN
                raise _failed(stood, str(event["reason"]))

    def _ensure(self) -> None:
        """Start a client if none runs."""
        if self._process is not None and self._process.poll() is None:
            return
        self._kill()
        self._events = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sweeper.bench.client", "--slot", str(self._slot)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(os.environ),
            start_new_session=True,  # Ctrl-C is for the owner, who closes it in order
        )
        threading.Thread(
            target=_read_events, args=(self._process, self._events), daemon=True
        ).start()

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def _read_events(
    process: subprocess.Popen[bytes], events: "queue.Queue[dict[str, Any] | None]"
) -> None:
    """Pass on the client's lines until its stdout ends, and then None."""
    if process.stdout is not None:
        with process.stdout as lines:
            for line in lines:
                try:
                    events.put(json.loads(line))
                except ValueError:  # cut off by its end
                    break
    events.put(None)


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which the client finds this very package."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [inherited.get("PYTHONPATH")])]
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths)}


def _failed(kind: FailureClass, line: str) -> BenchFailed:
    return BenchFailed(Failure(kind=kind, stage=Stage.SERVING, line=line))
