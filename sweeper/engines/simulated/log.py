"""The server's log: SGLang's line shapes, with engine time in the stamps."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from sweeper.clock import Clock
from sweeper.redaction import HIDDEN, is_secret_name


class Log:
    """Writes log lines to standard error, access lines to standard output, unbuffered.

    Args:
        clock: Engine time.
        ranks: Number of ranks; with more than one, scheduler lines name theirs.
    """

    def __init__(self, clock: Clock, ranks: int) -> None:
        self._clock = clock
        self._ranks = ranks
        self._origin_s = datetime.now().astimezone().timestamp() - clock.now_s()

    def stamp(self, rank: int | None = None) -> str:
        """Return `[date time]` of engine time, with ` TP0` for a rank of several."""
        when = datetime.fromtimestamp(self._origin_s + self._clock.now_s()).astimezone()
        tail = f" TP{rank}" if rank is not None and self._ranks > 1 else ""
        return f"[{when:%Y-%m-%d %H:%M:%S}{tail}]"

    def line(self, text: str, rank: int | None = None) -> None:
        """Write a line of the parent, or of one rank's scheduler."""
        self.raw(f"{self.stamp(rank)} {text}\n")

    def each_rank(self, text: str) -> None:
        """Write a line of every rank's scheduler."""
        for rank in range(self._ranks):
            self.line(text, rank)

    def raw(self, text: str) -> None:
        """Write text as it is, such as a progress bar or a traceback."""
        _write(sys.stderr.fileno(), text)

    def access(self, peer: str, method: str, path: str, status: int, reason: str) -> None:
        """Write uvicorn's line for one answer."""
        _write(
            sys.stdout.fileno(),
            f'{self.stamp()} INFO:     {peer} - "{method} {path} HTTP/1.1" {status} {reason}\n',
        )


def _write(fd: int, text: str) -> None:
    # A reader that went away must not end the server: SGLang's does not notice either.
    with suppress(BrokenPipeError):
        os.write(fd, text.encode())


def server_args_line(flags: Mapping[str, Any]) -> str:
    """Return `server_args={...}` with all flags, as 0.5.23 prints them, secrets hidden."""
    shown = {
        name: HIDDEN if is_secret_name(name) and value is not None else value
        for name, value in flags.items()
        if name != "config"
    }
    return f"server_args={shown}"


def bar(label: str, done: int, total: int, elapsed_s: float) -> str:
    """Return one redraw of tqdm's progress bar, `\\r` first."""
    share = done / total if total else 1.0
    filled = "█" * int(share * 10)
    rate = f"{done / elapsed_s:5.2f}it/s" if done and elapsed_s > 0 else "?it/s"
    left_s = elapsed_s / share - elapsed_s if share else 0.0
    left = f"{int(left_s) // 60:02d}:{int(left_s) % 60:02d}" if share else "?"
    spent = f"{int(elapsed_s) // 60:02d}:{int(elapsed_s) % 60:02d}"
    return f"\r{label}: {share:4.0%}|{filled:<10}| {done}/{total} [{spent}<{left}, {rate}]"
