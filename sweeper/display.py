"""What a person sees while a sweep runs: a live view on a terminal, plain lines elsewhere.

The only user of rich. Text from models, logs and users is printed as text, never as markup.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sweeper.cluster import Status
from sweeper.objective import baseline, best, pareto_front, standings
from sweeper.plan import Plan
from sweeper.records import Purpose, Trial, TrialRecord, TrialState
from sweeper.space import point_text
from sweeper.study import Study

#: Seconds between plain lines that only say that a trial still runs.
_HEARTBEAT_S = 30.0


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
    """

    study: Study
    records: Sequence[TrialRecord]
    running: Sequence[Trial]
    status: Mapping[str, Status]
    launches: int
    elapsed_s: float
    seconds_left: float | None


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
    """Return the live view on a terminal, plain lines elsewhere."""
    stream = stream or sys.stdout
    return LiveDisplay(stream) if stream.isatty() else PlainDisplay(stream)


def record_line(record: TrialRecord, study: Study) -> str:
    """Return one finished trial in a line."""
    trial = record.trial
    head = f"#{trial.number:<3} {_mark(trial, study)}{_name(trial)}"
    if record.state is TrialState.COMPLETE:
        parts = []
        for objective in study.objectives:
            value = objective.value(record)
            parts.append("not measured" if value is None else f"{value:.1f} {objective.label}")
        measurement = record.measurement(study.objectives[0].workload)
        if measurement and measurement.accept_length is not None:
            parts.append(f"accept length {measurement.accept_length:.2f}")
        return f"{head}: {', '.join(parts)}"
    why = str(record.failure) if record.failure else record.reason or ""
    return f"{head}: {record.state} ({why})"


def _name(trial: Trial) -> str:
    return "baseline" if trial.purpose is Purpose.BASELINE else point_text(trial.point)


def _mark(trial: Trial, study: Study) -> str:
    return "SIMULATED " if trial.launch.simulated or study.simulated else ""


def _best_line(view: View) -> str:
    objective = view.study.objectives[0]
    found = standings(view.records, view.study.objectives, view.study.slos)
    base, top = baseline(found), best(found, view.study.objectives)
    parts = []
    if top is not None:
        parts.append(f"best {top.values[0]:.1f} {objective.metric}")
        if base is not None and base.values[0]:
            parts.append(f"{(top.values[0] / base.values[0] - 1) * 100:+.1f} % to the baseline")
        parts.append(point_text(top.records[0].trial.point))
    elif base is not None:
        parts.append(f"baseline {base.values[0]:.1f} {objective.metric}")
    return ", ".join(parts) or "nothing measured yet"


def duration(seconds: float) -> str:
    """Return seconds as people write them."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


class PlainDisplay:
    """One line a finished trial, and one now and then while nothing finishes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, file=self._stream, flush=True)
        self._last = time.monotonic()

    def finished(self, record: TrialRecord, view: View) -> None:
        """Print the trial, and how far the sweep is."""
        left = f", about {duration(view.seconds_left)} left" if view.seconds_left else ""
        self.say(
            f"[{view.launches}/{view.study.budget.launches}] "
            f"{record_line(record, view.study)} | {_best_line(view)}{left}"
        )

    def update(self, view: View) -> None:
        """Print what is going on if nothing was printed for a while."""
        if time.monotonic() - self._last < _HEARTBEAT_S:
            return
        for slot, status in view.status.items():
            self.say(f"    {slot}: trial {status.number}, {status.stage or ''} {status.detail}")

    def close(self) -> None:
        """Nothing to restore."""


class LiveDisplay:
    """A few lines at the bottom of the terminal; finished trials scroll above them."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False, soft_wrap=False)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._live.start()

    def say(self, text: str) -> None:
        """Print a line above the live part."""
        self._console.print(Text(text))

    def finished(self, record: TrialRecord, view: View) -> None:
        """Print the trial above the live part."""
        style = "" if record.state is TrialState.COMPLETE else "yellow"
        self._console.print(Text(record_line(record, view.study), style=style))
        self.update(view)

    def update(self, view: View) -> None:
        """Redraw the live part."""
        budget = view.study.budget.launches
        left = f", about {duration(view.seconds_left)} left" if view.seconds_left else ""
        lines: list[Text | ProgressBar] = [
            ProgressBar(total=budget, completed=view.launches - len(view.running), width=40),
            Text(
                f"{view.launches} of {budget} launches, {duration(view.elapsed_s)}{left}",
                no_wrap=True,
                overflow="ellipsis",
            ),
            Text(_best_line(view), style="bold", no_wrap=True, overflow="ellipsis"),
        ]
        trials = {trial.number: trial for trial in view.running}
        for slot, status in view.status.items():
            trial = trials.get(status.number) if status.number is not None else None
            speed = f", {status.output_tok_s:.1f} tok/s" if status.output_tok_s else ""
            lines.append(
                Text(
                    f"{slot}: {status.stage or 'starting'} {status.detail}{speed} | "
                    f"{_name(trial) if trial else ''}",
                    style="cyan",
                    no_wrap=True,
                    overflow="ellipsis",
                )
            )
        failed = [r for r in view.records if r.failure is not None]
        if failed:
            lines.append(
                Text(
                    f"last failure: {record_line(failed[-1], view.study)}",
                    style="yellow",
                    no_wrap=True,
                    overflow="ellipsis",
                )
            )
        if view.study.simulated:
            lines.append(Text("SIMULATED: no GPU, no SGLang", style="magenta"))
        self._live.update(Group(*lines))

    def close(self) -> None:
        """Take the live part away."""
        self._live.stop()


def print_table(
    records: Sequence[TrialRecord], study: Study, stream: TextIO | None = None
) -> None:
    """Print the measured settings, best first."""
    console = Console(file=stream or sys.stdout, highlight=False)
    found = standings(records, study.objectives, study.slos)
    first = study.objectives[0]
    found.sort(key=lambda s: -first.gain(s.values[0]))
    front = {s.key for s in pareto_front(found, study.objectives)}
    table = Table(title="SIMULATED" if study.simulated else None, show_edge=False)
    table.add_column("trial", justify="right")
    for objective in study.objectives:
        table.add_column(objective.label, justify="right")
    table.add_column("accept length", justify="right")
    table.add_column("setting", overflow="fold")
    for standing in found[:12]:
        record = standing.records[-1]
        measurement = record.measurement(first.workload)
        length = measurement.accept_length if measurement else None
        mark = " (baseline)" if standing.is_baseline else ""
        if standing.broken:
            mark += f" (breaks {', '.join(standing.broken)})"
        elif len(study.objectives) > 1 and standing.key in front:
            mark += " (Pareto front)"
        table.add_row(
            str(record.trial.number),
            *(f"{v:.2f}" for v in standing.values),
            "" if length is None else f"{length:.2f}",
            Text(("" if standing.is_baseline else point_text(record.trial.point)) + mark),
        )
    console.print(table)


def print_plan(plan: Plan, study: Study, hours: float, stream: TextIO | None = None) -> None:
    """Print what a study would launch."""
    out = stream or sys.stdout
    size = str(len(plan.settings)) if plan.complete else f"more than {len(plan.settings)}"
    refused = sum(len(points) for points in plan.refused.values())
    lines = [
        (
            f"study {study.name} ({'SIMULATED, ' if study.simulated else ''}"
            f"engine {study.adapter.name}, model {study.engine.model}, {study.engine.gpus} GPUs)"
        ),
        f"{size} distinct settings can be launched; {plan.merged} points mean the same as others",
        f"{refused} points are refused before any launch:",
    ]
    ranked = sorted(plan.refused.items(), key=lambda item: -len(item[1]))
    for reason, points in ranked[:12]:
        lines.append(f"  {len(points):6}  {reason} (as {point_text(points[0])})")
    if len(ranked) > 12:
        rest = sum(len(points) for _, points in ranked[12:])
        lines.append(f"  {rest:6}  {len(ranked) - 12} more reasons")
    lines += [
        f"budget: {study.budget.launches} launches"
        + (f" or {study.budget.hours:g} hours" if study.budget.hours else ""),
        (
            f"first: the baseline, then {len(study.known)} known settings, then sampler "
            f"{study.sampler!r}"
        ),
        f"estimate: {hours:.1f} hours of engine time for {study.budget.launches} launches",
    ]
    print("\n".join(lines), file=out)
