"""Trials and settings in a line of text, without control characters."""

from collections.abc import Sequence

from sweeper.judging.standings import Standing, baseline, best, with_baseline
from sweeper.objective import Objective
from sweeper.records import Trial, TrialRecord, TrialState
from sweeper.space import point_text
from sweeper.study import Study
from sweeper.wording import amount, shorten, title, visible

#: Characters of a failure's line that are printed.
LINE_LIMIT = 600


def record_line(record: TrialRecord, study: Study) -> str:
    """Return one finished trial in a line, without control characters."""
    trial = record.trial
    again = f"(attempt {trial.attempt + 1} of #{trial.retry_of}) " if trial.attempt else ""
    head = f"#{trial.number:<3} {_mark(trial, study)}{again}{trial_name(trial)}"
    if record.state is TrialState.COMPLETE:
        parts = [_amount(objective, record) for objective in study.objectives]
        measurement = record.measurement(study.objectives[0].workload)
        told = "accept_length" in study.first_metrics
        if measurement and measurement.accept_length is not None and not told:
            parts.append(f"accept length {measurement.accept_length:.2f}")
        return visible(f"{head}: {', '.join(parts)}")
    why = str(record.failure) if record.failure else record.reason or ""
    return visible(f"{head}: {record.state}" + (f" ({shorten(why, LINE_LIMIT)})" if why else ""))


def _amount(objective: Objective, record: TrialRecord) -> str:
    value = objective.value(record)
    if value is None:
        return f"{title(objective.metric, objective.workload)} not measured"
    return amount(value, objective.metric, objective.workload)


def trial_name(trial: Trial) -> str:
    """Return the setting of a trial in words."""
    return point_text(trial.point) if trial.point else "baseline"


def _mark(trial: Trial, study: Study) -> str:
    return "SIMULATED " if trial.launch.simulated or study.simulated else ""


def best_line(records: Sequence[TrialRecord], study: Study) -> str:
    """Return the best setting so far, against the baseline, in a line."""
    found = with_baseline(records, study.objectives, study.slos)
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
