"""The table of the measured settings."""

import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sweeper.judging.standings import Standing, numbers, pareto_front, with_baseline
from sweeper.records import Scalar, TrialRecord
from sweeper.space import point_text
from sweeper.study import Study
from sweeper.wording import plain_number, shared, shorten, title, visible

#: Settings in the table.
ROWS = 12


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
    found = with_baseline(records, study.objectives, study.slos)
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
    # Not twice where it is an objective.
    lengths = "accept_length" not in study.first_metrics
    if lengths:
        table.add_column("accept\nlength", justify="right")
    table.add_column("setting", overflow="fold", ratio=1)
    for standing in shown:
        own = numbers(standing, records, study.objectives)
        measurement = standing.records[-1].measurement(first.workload)
        length = measurement.accept_length if measurement else None
        table.add_row(
            str(standing.records[-1].trial.number),
            *("" if v is None else plain_number(v) for v in own),
            *(["" if length is None else f"{length:.2f}"] if lengths else []),
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
