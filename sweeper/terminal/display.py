"""What a person sees while a sweep runs: a live view on a terminal, plain lines elsewhere.

Text from models, logs and users is printed as text, never as markup, and
its control characters by number. Nothing is redrawn that did not change.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from sweeper.cluster import Status
from sweeper.records import Trial, TrialRecord, TrialState
from sweeper.study import Study
from sweeper.terminal.lines import record_line, trial_name
from sweeper.wording import duration, shorten, visible

#: Seconds between plain lines that only say that a trial still runs.
_HEARTBEAT_S = 30.0
#: Seconds between two redraws, and between two that only move the clock.
_REDRAW_S, _CLOCK_S = 1.0, 10.0
#: Columns of the bar of progress.
BAR = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that is shown.

    Attributes:
        study: The study.
        records: Finished trials.
        running: Trials in flight.
        status: Slot -> what it does.
        launches: Launches spent.
        elapsed_s: Real seconds of this run.
        seconds_left: Real seconds that are likely left; None if unknown.
        best: The best setting so far, a line for each kind of hardware.
    """

    study: Study
    records: Sequence[TrialRecord]
    running: Sequence[Trial]
    status: Mapping[str, Status]
    launches: int
    elapsed_s: float
    seconds_left: float | None
    best: tuple[str, ...] = ()


class Display(Protocol):
    """Shows a sweep."""

    def say(self, text: str) -> None:
        """Print a line that stays."""

    def finished(self, record: TrialRecord, view: View) -> None:
        """Tell of a finished trial."""

    def update(self, view: View) -> None:
        """Show what is going on now; called about twice a second."""

    def close(self) -> None:
        """Leave the terminal as it was."""


def make_display(stream: TextIO | None = None) -> Display:
    """Return the live view on a terminal that can move its cursor, plain lines elsewhere."""
    stream = stream or sys.stdout
    able = stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    return LiveDisplay(stream) if able else PlainDisplay(stream)


class PlainDisplay:
    """One line a finished trial, and one now and then while nothing finishes.

    Args:
        stream: Where lines go.
        now_s: Real monotonic seconds.
    """

    def __init__(self, stream: TextIO, now_s: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._now_s = now_s
        self._last_s = now_s()
        self._best: tuple[str, ...] = ()

    def say(self, text: str) -> None:
        """Print a line."""
        print(visible(text), file=self._stream, flush=True)
        self._last_s = self._now_s()

    def finished(self, record: TrialRecord, view: View) -> None:
        """Print the trial and how far the sweep is; the best setting when it has changed."""
        left = f", about {duration(view.seconds_left)} left" if view.seconds_left else ""
        self.say(
            f"[{view.launches}/{view.study.budget.launches}{left}] "
            f"{record_line(record, view.study)}"
        )
        for line in view.best:
            if line not in self._best:
                self.say(f"    {line}")
        self._best = view.best

    def update(self, view: View) -> None:
        """Print what is going on if nothing was printed for a while."""
        if self._now_s() - self._last_s < _HEARTBEAT_S:
            return
        for slot, status in view.status.items():
            self.say(f"    {slot}: trial {status.number}, {_doing(status)}")

    def close(self) -> None:
        """Nothing to restore."""


def _doing(status: Status) -> str:
    speed = f"{status.output_tok_s:.1f} tok/s" if status.output_tok_s else ""
    detail = visible(status.detail)
    # The same word twice says no more.
    stage = "" if status.stage and detail.startswith(status.stage) else status.stage or "starting"
    return ", ".join(part for part in (stage, detail, speed) if part)


class LiveDisplay:
    """A few lines at the bottom of the terminal; finished trials scroll above them.

    Args:
        stream: The terminal.
        now_s: Real monotonic seconds.
        width: Its columns; None for what the terminal says, also after it was resized.
    """

    def __init__(
        self,
        stream: TextIO,
        now_s: Callable[[], float] = time.monotonic,
        *,
        width: int | None = None,
    ) -> None:
        self._console = Console(file=stream, highlight=False, soft_wrap=False, width=width)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()
        self._now_s = now_s
        self._drawn_s = float("-inf")
        self._shown: object = None

    def say(self, text: str) -> None:
        """Print a line above the live part."""
        self._console.print(Text(visible(text)))

    def finished(self, record: TrialRecord, view: View) -> None:
        """Print the trial above the live part."""
        style = "" if record.state is TrialState.COMPLETE else "yellow"
        self._console.print(Text(record_line(record, view.study), style=style))
        self._draw(view)

    def update(self, view: View) -> None:
        """Redraw the live part if it changed, at most once a second."""
        since_s = self._now_s() - self._drawn_s
        changed = (view.launches, len(view.records), tuple(view.status.items())) != self._shown
        if since_s >= _CLOCK_S or (changed and since_s >= _REDRAW_S):
            self._draw(view)

    def _draw(self, view: View) -> None:
        self._shown = (view.launches, len(view.records), tuple(view.status.items()))
        self._drawn_s = self._now_s()
        self._live.update(Group(*_live_lines(view)), refresh=True)

    def close(self) -> None:
        """Take the live part away."""
        self._live.stop()


def _live_lines(view: View) -> list[RenderableType]:
    def line(text: str, style: str = "") -> Text:
        return Text(visible(text), style=style, no_wrap=True, overflow="ellipsis")

    budget = view.study.budget.launches
    left = f", about {duration(view.seconds_left)} left" if view.seconds_left else ""
    done = round(BAR * min((view.launches - len(view.running)) / budget, 1.0))
    lines: list[RenderableType] = [
        # A bar of text: rich's own ends without a line end where it is narrower than the screen.
        Text.assemble(("━" * done, "green"), ("━" * (BAR - done), "bright_black")),
        line(f"{view.launches} of {budget} launches, {duration(view.elapsed_s)}{left}"),
        *(line(text, "bold") for text in view.best),
    ]
    trials = {trial.number: trial for trial in view.running}
    for slot, status in view.status.items():
        trial = trials.get(status.number) if status.number is not None else None
        name = f" | {trial_name(trial)}" if trial else ""
        lines.append(line(f"{shorten(slot, 24)}: {_doing(status)}{name}", "cyan"))
    failed = [r for r in view.records if r.failure is not None]
    if failed:
        # The failure first: a long setting would push it out of a narrow terminal.
        last = failed[-1]
        text = f"last of {len(failed)} failures: #{last.trial.number} {last.failure}"
        lines.append(line(f"{text} | {trial_name(last.trial)}", "yellow"))
    if view.study.simulated:
        lines.append(line("SIMULATED: no GPU, no SGLang", "magenta"))
    return lines
