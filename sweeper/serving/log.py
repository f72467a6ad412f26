"""A server's log, read while it grows."""

import os
import re
from pathlib import Path

from sweeper.engines.base import LogReader

_PIECE = 256 * 1024
#: What is read at once, so that a flood does not keep the owner from its other duties.
_AT_ONCE = 4 * 1024 * 1024
#: Behind by more than this, the reader skips to the last part.
_BACKLOG = 64 * 1024 * 1024
_LINE_KEPT = 4096
_LINE_END = re.compile(rb"[\r\n]+")


class LogTail:
    """Feeds a reader with what a log gains from now on.

    Args:
        path: The log; it need not exist yet. What it holds already is an earlier server's.
        reader: The engine's reader.
        echoes: Texts of access-log lines that the owner's own probes cause. They are no
            progress: a server whose scheduler is dead still writes them.
    """

    def __init__(self, path: Path, reader: LogReader, *, echoes: tuple[str, ...] = ()) -> None:
        self._path = path
        self._reader = reader
        self._echoes = tuple(text.encode() for text in echoes)
        self._file: int | None = None
        self._offset = path.stat().st_size if path.exists() else 0
        self._open_line = b""
        self._last_line = b""

    @property
    def last_line(self) -> str:
        """The last line with anything on it, cut to a readable length."""
        line = self._open_line.strip() or self._last_line
        return line.decode(errors="replace").strip()[-500:]

    def read(self) -> bool:
        """Feed what is new, up to a few MiB; tell whether any of it is progress."""
        if self._file is None:
            try:
                self._file = os.open(self._path, os.O_RDONLY)
            except OSError:
                return False
        behind = os.fstat(self._file).st_size - self._offset
        if behind > _BACKLOG:
            self._offset += behind - _AT_ONCE
            self._take(b"\n")
        progress = False
        for _ in range(_AT_ONCE // _PIECE):
            data = os.pread(self._file, _PIECE, self._offset)
            if not data:
                break
            self._offset += len(data)
            progress |= self._take(data)
        return progress

    def drain(self) -> None:
        """Feed all that is left of a log whose writers are gone."""
        while True:
            before = self._offset
            self.read()
            if self._offset == before:
                return

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _take(self, data: bytes) -> bool:
        self._reader.feed(data)
        *lines, rest = _LINE_END.split(self._open_line + data)
        grown = rest != b"" and not self._is_echo(rest)
        self._open_line = rest[-_LINE_KEPT:]
        full = [line for line in lines if line.strip()]
        if full:
            self._last_line = full[-1][-_LINE_KEPT:]
        return grown or any(not self._is_echo(line) for line in full)

    def _is_echo(self, line: bytes) -> bool:
        return any(text in line for text in self._echoes)
