"""What a person sees while a sweep runs: a live view on a terminal, plain lines elsewhere.

The only user of rich. Text from models, logs and users is printed as text, never as markup, and
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
from rich.table import Table
from rich.text import Text

from sweeper.cluster import Status
from sweeper.objective import Objective, Standing, baseline, best, pareto_front, standings
from sweeper.planning.plan import Plan
from sweeper.records import Scalar, Trial, TrialRecord, TrialState
from sweeper.space import point_text
from sweeper.study import Study
from sweeper.wording import amount, duration, plain_number, shared, shorten, title, visible

#: Seconds between plain lines that only say that a trial still runs.
_HEARTBEAT_S = 30.0
#: Seconds between two redraws, and between two that only move the clock.
_REDRAW_S, _CLOCK_S = 1.0, 10.0
#: Columns of the bar of progress.
BAR = 40
#: Settings in the table.
ROWS = 12
#: Characters of a failure's line that are printed.
LINE_LIMIT = 600


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


def record_line(record: TrialRecord, study: Study) -> str:
    """Return one finished trial in a line, without control characters."""
    trial = record.trial
    again = f"(attempt {trial.attempt + 1} of #{trial.retry_of}) " if trial.attempt else ""
    head = f"#{trial.number:<3} {_mark(trial, study)}{again}{_name(trial)}"
    if record.state is TrialState.COMPLETE:
        parts = [_amount(objective, record) for objective in study.objectives]
        measurement = record.measurement(study.objectives[0].workload)
        if measurement and measurement.accept_length is not None:
            parts.append(f"accept length {measurement.accept_length:.2f}")
        return visible(f"{head}: {', '.join(parts)}")
    why = str(record.failure) if record.failure else record.reason or ""
    return visible(f"{head}: {record.state}" + (f" ({shorten(why, LINE_LIMIT)})" if why else ""))


def _amount(objective: Objective, record: TrialRecord) -> str:
    value = objective.value(record)
    if value is None:
        return f"{title(objective.metric, objective.workload)} not measured"
    return amount(value, objective.metric, objective.workload)


def _name(trial: Trial) -> str:
    return point_text(trial.point) if trial.point else "baseline"


def _mark(trial: Trial, study: Study) -> str:
    return "SIMULATED " if trial.launch.simulated or study.simulated else ""


def best_line(records: Sequence[TrialRecord], study: Study) -> str:
    """Return the best setting so far, against the baseline, in a line."""
    found = standings(records, study.objectives, study.slos)
    return best_text(baseline(found), best(found, study.objectives), study)


def best_text(base: Standing | None, top: Standing | None, study: Study) -> str:
    """Return the best setting, against the baseline, in a line."""
    objective = study.objectives[0]
    if top is None:
        if base is None:
            return "nothing measured yet"
        return f"baseline {amount(base.values[0], objective.metric)}"
    parts = [f"best {amount(top.values[0], objective.metric)}"]
    if base is not None and base.values[0]:
        change = (top.values[0] / base.values[0] - 1) * 100
        parts.append(f"{change:+.1f} % to the baseline")
    parts.append(point_text(top.records[0].trial.point))
    return visible(", ".join(parts))


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
        name = f" | {_name(trial)}" if trial else ""
        lines.append(line(f"{shorten(slot, 24)}: {_doing(status)}{name}", "cyan"))
    failed = [r for r in view.records if r.failure is not None]
    if failed:
        # The failure first: a long setting would push it out of a narrow terminal.
        last = failed[-1]
        text = f"last of {len(failed)} failures: #{last.trial.number} {last.failure}"
        lines.append(line(f"{text} | {_name(last.trial)}", "yellow"))
    if view.study.simulated:
        lines.append(line("SIMULATED: no GPU, no SGLang", "magenta"))
    return lines


def print_table(
    records: Sequence[TrialRecord],
    study: Study,
    stream: TextIO | None = None,
    *,
    width: int | None = None,
) -> None:
    """Print the measured settings, best first; what all of them share is said once.

    Args:
        records: Finished trials.
        study: The study.
        stream: Where to; standard output if None.
        width: Columns; None for the terminal's, or 80 where there is none.
    """
    console = Console(file=stream or sys.stdout, highlight=False, width=width)
    found = standings(records, study.objectives, study.slos)
    first = study.objectives[0]
    found.sort(key=lambda s: -first.gain(s.values[0]))
    front = {s.key for s in pareto_front(found, study.objectives)}
    shown = found[:ROWS]
    shown += [s for s in found[ROWS:] if s.is_baseline]
    if not shown:
        console.print("no setting was measured to the end")
        return
    common = shared([s.records[0].trial.point for s in shown if not s.is_baseline])
    table = Table(title="SIMULATED" if study.simulated else None, show_edge=False)
    table.add_column("trial", justify="right")
    for objective in study.objectives:
        # The workload on a line of its own leaves room for the setting.
        words = title(objective.metric) + (
            f"\n({objective.workload})" if objective.workload else ""
        )
        lines = [shorten(visible(line), 24) for line in words.split("\n", 1)]
        table.add_column(Text("\n".join(lines)), justify="right")
    table.add_column("accept\nlength", justify="right")
    table.add_column("setting", overflow="fold", ratio=1)
    for standing in shown:
        measurement = standing.records[-1].measurement(first.workload)
        length = measurement.accept_length if measurement else None
        table.add_row(
            str(standing.records[-1].trial.number),
            *(plain_number(v) for v in standing.values),
            "" if length is None else f"{length:.2f}",
            Text(visible(_row_name(standing, common, in_front=standing.key in front, of=study))),
        )
    console.print(table)
    if common:
        console.print(Text(visible(f"in all of these: {point_text(common)}")))
    if len(found) > len(shown):
        console.print(f"and {len(found) - len(shown)} more")


def _row_name(
    standing: Standing, common: Mapping[str, Scalar], *, in_front: bool, of: Study
) -> str:
    point = standing.records[0].trial.point
    own = {name: value for name, value in point.items() if name not in common}
    words = ["baseline" if standing.is_baseline else point_text(own)]
    if standing.broken:
        words.append(f"(breaks {', '.join(standing.broken)})")
    elif len(of.objectives) > 1 and in_front:
        words.append("(Pareto front)")
    if len(standing.records) > 1:
        words.append(f"({len(standing.records)} launches)")
    return " ".join(words)


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
    print("\n".join(visible(line) for line in lines), file=out)
