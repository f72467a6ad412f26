"""A reader that goes away, as `head` does or a terminal that is closed, ends no sweep."""

import io
import os
import sys
from typing import Any, TextIO, cast


class _Lasting:
    """A stream whose further text goes nowhere once its reader has gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write; the text is lost without a reader."""
        try:
            return self._stream.write(text)
        except OSError:  # EPIPE of a pipe, EIO of a terminal that was closed
            self._leave()
            return len(text)

    def flush(self) -> None:
        """Flush; what waited is lost without a reader."""
        try:
            self._stream.flush()
        except OSError:
            self._leave()

    def _leave(self) -> None:
        # What the stream still holds, it writes at its end: that must go somewhere.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def print_anything() -> None:
    """Print characters that the output's encoding lacks as "?", so that they end no command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def outlive_reader() -> None:
    """Let this process go on when nobody reads its output any more, or not all characters of it."""
    print_anything()
    sys.stdout = cast(TextIO, _Lasting(sys.stdout))
    sys.stderr = cast(TextIO, _Lasting(sys.stderr))
