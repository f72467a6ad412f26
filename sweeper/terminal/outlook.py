"""What `--plan` says: the settings, and what each sampler would need, by simulated sweeps."""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from sweeper.planning.agenda import fitting
from sweeper.planning.plan import Plan
from sweeper.records import TrialRecord
from sweeper.sampler import Forecast, forecast
from sweeper.space import point_text
from sweeper.store import Store, newest_run
from sweeper.study import Study
from sweeper.terminal.options import estimate_hours
from sweeper.wording import visible

#: CPU seconds for the sweeps of one sampler; three are simulated. Not by the wall: a busy machine
#: would get another forecast.
LIMIT_S = 1.5


def print_outlook(options: argparse.Namespace, study: Study, plan: Plan) -> None:
    """Print what each sampler would need, from the model and the rows that are stored already."""
    if not plan.complete:
        print("no forecast: the space has too many settings to be listed")
        return
    folder = newest_run(options.runs, study.name)
    records: list[TrialRecord] = []
    if folder.is_dir() and not options.fresh:
        with Store(folder) as store:
            records, _ = fitting(store.records(), study)
    found = forecast(study, plan, records, now_s=time.process_time, limit_s=LIMIT_S)
    print_forecasts(found, len(records), hours_a_launch(study, records))


def hours_a_launch(study: Study, records: Sequence[TrialRecord]) -> float:
    """Return engine hours of one launch: the median of what stored ones took, or an estimate."""
    took = [sum(v for k, v in r.phases_s.items() if "." not in k) for r in records if r.phases_s]
    if took:
        return statistics.median(took) / 3600.0
    return estimate_hours(study) / study.budget.launches


def print_forecasts(
    forecasts: Sequence[Forecast], trials: int, hours: float, stream: TextIO | None = None
) -> None:
    """Print a short table.

    Args:
        forecasts: What each sampler would need.
        trials: Stored trials that they rest on.
        hours: Hours of one launch.
        stream: Where to; standard output by default.
    """
    basis = f"fitted to {trials} stored trials" if trials else "before anything was measured"
    lines = [f"until a setting within 1 % of the best was launched, by the model {basis}:"]
    for one in forecasts:
        if one.launches is None:
            lines.append(f"  {one.sampler:<8} not simulated: {one.reason}")
            continue
        sign = ">" if one.at_least else ""
        lines.append(
            f"  {one.sampler:<8} {sign + str(one.launches):>6} launches "
            f"{sign + format(one.launches * hours, '.1f'):>7} h   "
            f"(median of {one.worlds} simulated)"
        )
    print("\n".join(lines), file=stream or sys.stdout)


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
