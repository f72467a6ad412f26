"""How a sweep went: speed by launch and by GPU-hour, drift of the baseline, hours; pure.

(study, records) -> ProgressInfo, DriftInfo, HoursInfo
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.errors import Stage
from sweeper.objective import Objective, baseline_keys, broken_slos
from sweeper.records import TrialRecord, TrialState
from sweeper.report.settings import is_simulated, setting_text
from sweeper.statistics.measurement import Drift, drift
from sweeper.study import Study

MEASURED = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """What the baseline showed over all of its launches.

    Attributes:
        low: The lowest interval's lower end, or the lowest value.
        middle: Median of the values.
        high: The highest interval's upper end, or the highest value.
        count: Launches.
    """

    low: float
    middle: float
    high: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """One launch in the progress figure.

    Attributes:
        number: Its trial's number.
        launch: How many servers had been started, this one included.
        gpu_hours: GPU-hours spent when it ended, this one included.
        value: The objective; None where it was not measured.
        low: Lower end of its interval; None where there is none.
        high: Upper end of its interval; None where there is none.
        state: How the trial ended.
        setting: The setting, raw text.
        is_baseline: Whether it is the baseline's setting.
        why: The failure's class, where it failed.
    """

    number: int
    launch: int
    gpu_hours: float
    value: float | None
    low: float | None = None
    high: float | None = None
    state: TrialState
    setting: str
    is_baseline: bool = False
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressInfo:
    """Speed by launch.

    Attributes:
        objective: What is shown.
        points: One for each started server, in order.
        best_so_far: The best value of a setting that is not the baseline and keeps all limits,
            after each point; None before the first.
        baseline: The measured baseline; None if there is none.
        reference: A figure from elsewhere, in tok/s; None where the objective is another number.
        simulated: Whether any point is simulated.
    """

    objective: Objective
    points: tuple[Launched, ...]
    best_so_far: tuple[float | None, ...]
    baseline: Band | None
    reference: float | None
    simulated: bool


def progress_info(
    study: Study, records: Sequence[TrialRecord], objective: Objective
) -> ProgressInfo:
    """Return speed by launch for one objective."""
    keys = baseline_keys(records)
    points: list[Launched] = []
    best: list[float | None] = []
    top: float | None = None
    hours = 0.0
    started = [r for r in _ordered(records) if r.launched]
    for launch, record in enumerate(started, start=1):
        hours += record.gpu_hours
        value = objective.value(record) if record.state in MEASURED else None
        low, high = _interval(record, objective) if value is not None else (None, None)
        is_baseline = record.trial.launch.key in keys
        points.append(
            Launched(
                number=record.trial.number,
                launch=launch,
                gpu_hours=hours,
                value=value,
                low=low,
                high=high,
                state=record.state,
                setting=setting_text(record),
                is_baseline=is_baseline,
                why=str(record.failure.kind) if record.failure else None,
            )
        )
        counts = record.state is TrialState.COMPLETE and not is_baseline
        if (
            counts
            and value is not None
            and not broken_slos(record, study.slos)
            and (top is None or objective.gain(value) > objective.gain(top))
        ):
            top = value
        best.append(top)
    return ProgressInfo(
        objective=objective,
        points=tuple(points),
        best_so_far=tuple(best),
        baseline=baseline_band(records, objective),
        reference=reference(study, objective),
        simulated=any(is_simulated(r) for r in started),
    )


def reference(study: Study, objective: Objective) -> float | None:
    """Return the figure from elsewhere, if it is of the objective's kind and workload.

    It is one for a single stream: the first workload's output tokens a second.
    """
    first = study.workloads[0].name
    if objective.metric != "output_tok_s" or objective.workload not in (None, first):
        return None
    return study.baseline.reference_tok_s


def baseline_band(records: Sequence[TrialRecord], objective: Objective) -> Band | None:
    """Return what the baseline showed over all of its complete launches."""
    keys = baseline_keys(records)
    measured = [
        (value, *_interval(r, objective))
        for r in _ordered(records)
        if r.trial.launch.key in keys
        and r.state is TrialState.COMPLETE
        and (value := objective.value(r)) is not None
    ]
    if not measured:
        return None
    return Band(
        low=min(v if low is None else low for v, low, _ in measured),
        middle=statistics.median(v for v, _, _ in measured),
        high=max(v if high is None else high for v, _, high in measured),
        count=len(measured),
    )


def _interval(record: TrialRecord, objective: Objective) -> tuple[float | None, float | None]:
    measurement = record.measurement(objective.workload)
    if measurement is None or objective.metric != "output_tok_s":
        return None, None
    return measurement.output_tok_s_low, measurement.output_tok_s_high


def _ordered(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    return sorted(records, key=lambda r: r.trial.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftInfo:
    """The baseline, measured again and again.

    Attributes:
        objective: What is shown.
        numbers: Trial numbers.
        slots: Host and slot that each ran on.
        hours: Engine hours that the slot had taken when each began.
        values: The objective.
        trend: Its trend over engine time on the slot with the most; None of fewer than three.
        simulated: Whether any point is simulated.
    """

    objective: Objective
    numbers: tuple[int, ...]
    slots: tuple[str, ...]
    hours: tuple[float, ...]
    values: tuple[float, ...]
    trend: Drift | None
    simulated: bool


def drift_info(study: Study, records: Sequence[TrialRecord]) -> DriftInfo:
    """Return the baseline's first objective over the sweep."""
    objective = study.objectives[0]
    keys = baseline_keys(records)
    found: list[tuple[int, str, float, float]] = []
    simulated = False
    # Slots work side by side, so that each has hours of its own.
    hours: dict[str, float] = {}
    for record in _ordered(records):
        slot = f"{record.host.host}/{record.host.slot}" if record.host else ""
        value = objective.value(record) if record.state is TrialState.COMPLETE else None
        if record.trial.launch.key in keys and value is not None:
            found.append((record.trial.number, slot, hours.get(slot, 0.0), value))
            simulated |= is_simulated(record)
        hours[slot] = hours.get(slot, 0.0) + phases_s(record) / 3600
    slots = tuple(s for _, s, _, _ in found)
    most = max(slots, key=slots.count, default="")
    here = [(h, v) for _, s, h, v in found if s == most]
    return DriftInfo(
        objective=objective,
        numbers=tuple(n for n, _, _, _ in found),
        slots=slots,
        hours=tuple(h for _, _, h, _ in found),
        values=tuple(v for _, _, _, v in found),
        trend=drift([v for _, v in here], [h * 3600 for h, _ in here]),
        simulated=simulated,
    )


def phases_s(record: TrialRecord) -> float:
    """Return the engine seconds of a trial; stages of the start are inside it."""
    return sum(v for k, v in record.phases_s.items() if "." not in k)


@dataclass(frozen=True, slots=True, kw_only=True)
class HoursInfo:
    """Where the GPU-hours went.

    Attributes:
        outcomes: How trials ended, those that took time, and how many of each.
        phases: Phases, the start split by stage, in the order in which a trial passes them.
        gpu_hours: For each outcome the GPU-hours of each phase, shape (outcomes, phases).
        total: All GPU-hours.
        simulated: Whether any of them are simulated.
    """

    outcomes: tuple[tuple[TrialState, int], ...]
    phases: tuple[str, ...]
    gpu_hours: tuple[tuple[float, ...], ...]
    total: float
    simulated: bool


def hours_info(records: Sequence[TrialRecord]) -> HoursInfo:
    """Return GPU-hours by outcome and phase."""
    spent: dict[TrialState, dict[str, float]] = {}
    counts: dict[TrialState, int] = {}
    seen: dict[str, None] = {}
    for record in _ordered(records):
        if not record.phases_s:
            continue
        counts[record.state] = counts.get(record.state, 0) + 1
        into = spent.setdefault(record.state, {})
        share = max(record.trial.launch.gpus, 1) / 3600
        for phase, seconds in _parts(record).items():
            seen.setdefault(phase)
            into[phase] = into.get(phase, 0.0) + seconds * share
    order = ["start", *(f"start.{stage}" for stage in Stage)]
    phases = sorted(seen, key=lambda p: order.index(p) if p in order else len(order))
    states = [s for s in TrialState if s in spent]
    return HoursInfo(
        outcomes=tuple((s, counts[s]) for s in states),
        phases=tuple(phases),
        gpu_hours=tuple(tuple(spent[s].get(p, 0.0) for p in phases) for s in states),
        total=sum(r.gpu_hours for r in records),
        simulated=any(is_simulated(r) for r in records if r.phases_s),
    )


def _parts(record: TrialRecord) -> dict[str, float]:
    """Return seconds by phase, "start" being what its stages leave."""
    stages = {k: v for k, v in record.phases_s.items() if k.startswith("start.")}
    rest = record.phases_s.get("start", 0.0) - sum(stages.values())
    parts = dict(stages)
    if rest > 1e-6:
        parts["start"] = rest
    return parts | {k: v for k, v in record.phases_s.items() if "." not in k and k != "start"}
