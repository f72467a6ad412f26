"""Turns of the slots of one node: many may start a server at once, one measures, alone.

A start takes minutes and a measurement seconds, but both disturb a neighbour's measurement: they
share processors, memory and PCIe. So servers start side by side, wait, and are measured one after
another while nobody starts.

    starting ----\\                   shared
    starting -----+--> turn file
    measuring ---/                    exclusive; announced in the queue file, so that starts wait

Both files are locked with flock, which the kernel undoes for a process that dies. They lie in the
machine's own temporary folder, since the runs' folder may be one that several nodes see.
"""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

#: Real seconds between two looks at a lock that another slot holds.
_POLL_S = 0.1


class Turns:
    """One slot's part in it, for one trial.

    Args:
        check: Called while waiting; what it raises ends the wait.
        folder: Folder of the two files; None for this user's own on this machine.
    """

    def __init__(self, check: Callable[[], None], folder: Path | None = None) -> None:
        self._check = check
        self._folder = _own_folder() if folder is None else folder

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Wait until nobody measures or waits to, and keep others from measuring inside."""
        with self._file("turn") as turn:
            with self._file("queue") as queue:
                while True:
                    # Nobody can get into the queue between the two.
                    if _try(queue, fcntl.LOCK_EX):
                        if _try(turn, fcntl.LOCK_SH):
                            break
                        fcntl.flock(queue, fcntl.LOCK_UN)
                    self._pause()
            yield

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Wait until nobody else starts or measures, and keep others from both inside."""
        with self._file("turn") as turn:
            with self._file("queue") as queue:
                while not _try(queue, fcntl.LOCK_SH):
                    self._pause()
                while not _try(turn, fcntl.LOCK_EX):
                    self._pause()
            yield

    def _pause(self) -> None:
        self._check()
        time.sleep(_POLL_S)

    @contextlib.contextmanager
    def _file(self, name: str) -> Iterator[int]:
        """Open a file whose lock ends with the block."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        handle = os.open(self._folder / name, flags, 0o600)
        try:
            yield handle
        finally:
            os.close(handle)


def _try(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _own_folder() -> Path:
    """Return a folder of this user alone, the same for all of its processes on this machine.

    Raises:
        PermissionError: The name is taken by somebody else.
    """
    folder = Path(tempfile.gettempdir()) / f"sweeper-turns-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} is not this user's own")
    return folder
