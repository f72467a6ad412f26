"""One number against another: Pareto fronts, and accept length against step time; pure.

(study, records) -> ParetoInfo, AcceptInfo, WhatIfInfo
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.judging.standings import Standing, pareto_front, standings
from sweeper.objective import Objective
from sweeper.records import Measurement, TrialRecord, TrialState
from sweeper.report.settings import is_simulated, setting_text
from sweeper.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One setting in a plane of two objectives.

    Attributes:
        key: Identity of its launch.
        setting: The setting, raw text.
        x: Median of the first objective.
        y: Median of the second objective.
        launches: Complete launches.
        on_front: Whether no other setting that keeps the limits dominates it.
        is_baseline: Whether it is the baseline.
        broken: Limits that it breaks.
    """

    key: str
    setting: str
    x: float
    y: float
    launches: int
    on_front: bool
    is_baseline: bool
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoInfo:
    """Settings in a plane of two objectives.

    Attributes:
        x: The first objective.
        y: The second objective.
        candidates: The measured settings, by first trial.
        front: Indices into `candidates`, from the lowest x up.
        knee: Index of the front's knee; None of fewer than three points.
        x_limits: Bounds on x that the study's limits set.
        y_limits: Bounds on y that the study's limits set.
        simulated: Whether any of them is simulated.
    """

    x: Objective
    y: Objective
    candidates: tuple[Candidate, ...]
    front: tuple[int, ...]
    knee: int | None
    x_limits: tuple[float, ...]
    y_limits: tuple[float, ...]
    simulated: bool


def pareto_info(
    study: Study, records: Sequence[TrialRecord], x: Objective, y: Objective
) -> ParetoInfo:
    """Return the measured settings, which of them no other dominates, and the knee."""
    found = standings(records, (x, y), study.slos)
    front_keys = {s.key for s in pareto_front(found, (x, y))}
    candidates = tuple(
        Candidate(
            key=s.key,
            setting=setting_text(s.records[0]) if not s.is_baseline else "baseline",
            x=s.values[0],
            y=s.values[1],
            launches=len(s.records),
            on_front=s.key in front_keys,
            is_baseline=s.is_baseline,
            broken=s.broken,
        )
        for s in found
    )
    front = sorted(
        (i for i, c in enumerate(candidates) if c.on_front),
        key=lambda i: (candidates[i].x, candidates[i].y),
    )
    corner = knee([(x.gain(candidates[i].x), y.gain(candidates[i].y)) for i in front])
    return ParetoInfo(
        x=x,
        y=y,
        candidates=candidates,
        front=tuple(front),
        knee=None if corner is None else front[corner],
        x_limits=_limits(study, x),
        y_limits=_limits(study, y),
        simulated=any(is_simulated(r) for s in found for r in s.records),
    )


def _limits(study: Study, objective: Objective) -> tuple[float, ...]:
    first = study.workloads[0].name
    where = objective.workload or first
    return tuple(
        slo.bound
        for slo in study.slos
        if slo.metric == objective.metric and (slo.workload or first) == where
    )


def knee(gains: Sequence[tuple[float, float]]) -> int | None:
    """Return the index of the point farthest beyond the chord between the front's ends.

    Both axes are scaled to 0..1 first (Das 1999, "On characterizing the knee of the Pareto
    curve"; Satopaa et al. 2011). None of fewer than three points, and where no point lies beyond.
    """
    if len(gains) < 3:
        return None
    lows = [min(g[k] for g in gains) for k in (0, 1)]
    spans = [max(g[k] for g in gains) - lows[k] for k in (0, 1)]
    if min(spans) <= 0:
        return None
    # On a front one number falls as the other rises, so the scaled chord is x + y = 1.
    beyond = [sum((g[k] - lows[k]) / spans[k] for k in (0, 1)) - 1 for g in gains]
    top = max(range(len(gains)), key=lambda i: beyond[i])
    return top if beyond[top] > 1e-9 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One launch in the plane of accept length and step time.

    Attributes:
        number: Its trial's number.
        setting: The setting, raw text.
        accept_length: Tokens a step, the target's own included; 1 without speculation.
        step_time_ms: Time of one step.
        tok_s: Speed that was measured; None where it was not.
        is_baseline: Whether it is the baseline.
    """

    number: int
    setting: str
    accept_length: float
    step_time_ms: float
    tok_s: float | None
    is_baseline: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptInfo:
    """Accept length against step time; speed while decoding = accept length / step time.

    Attributes:
        workload: Where they were measured.
        steps: One for each complete launch that tells both.
        levels: Speeds in tok/s for lines of equal speed, round numbers.
        reference: The figure from elsewhere, in tok/s; None without one.
        simulated: Whether any of them is simulated.
    """

    workload: str
    steps: tuple[Step, ...]
    levels: tuple[float, ...]
    reference: float | None
    simulated: bool


def accept_info(study: Study, records: Sequence[TrialRecord]) -> AcceptInfo:
    """Return accept length and step time on the study's first workload."""
    workload = study.workloads[0].name
    steps: list[Step] = []
    simulated = False
    for record in sorted(records, key=lambda r: r.trial.number):
        measurement = record.measurement(workload)
        if record.state is not TrialState.COMPLETE or measurement is None:
            continue
        speculates = any(f.startswith("speculative-") for f in record.trial.launch.flags)
        length, time_ms = _step(measurement, speculates)
        if length is None or not time_ms:
            continue
        simulated |= is_simulated(record)
        steps.append(
            Step(
                number=record.trial.number,
                setting=setting_text(record),
                accept_length=length,
                step_time_ms=time_ms,
                tok_s=measurement.output_tok_s,
                is_baseline=setting_text(record) == "baseline",
            )
        )
    speeds = [1000 * s.accept_length / s.step_time_ms for s in steps]
    return AcceptInfo(
        workload=workload,
        steps=tuple(steps),
        levels=round_levels(min(speeds), max(speeds)) if speeds else (),
        reference=study.baseline.reference_tok_s if study.workloads[0].concurrency == 1 else None,
        simulated=simulated,
    )


def _step(measurement: Measurement, speculates: bool) -> tuple[float | None, float | None]:
    if speculates:
        return measurement.accept_length, measurement.step_time_ms
    # Without speculation each step yields one token, so its time is the time per token.
    return 1.0, measurement.step_time_ms or measurement.tpot_p50_ms


def round_levels(low: float, high: float) -> tuple[float, ...]:
    """Return three to eight round numbers that span `low` to `high`, ends included or passed."""
    if high <= 0:
        return ()
    width = max(high - low, high * 0.1) / 4
    power = 10.0 ** math.floor(math.log10(width))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= width * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    return tuple(round(k * step, 6) for k in range(max(first, 1), last + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfInfo:
    """What a setting's speed would be at another accept length, its step time unchanged.

    Attributes:
        accept_length: The supposed accept length.
        settings: The settings, raw text, fastest first.
        measured_tok_s: Speed while decoding as measured: accept length / step time.
        supposed_tok_s: The supposed length / the same step time.
        baseline_tok_s: The baseline's speed while decoding; None if it was not measured.
        simulated: Whether any of them is simulated.
    """

    accept_length: float
    settings: tuple[str, ...]
    measured_tok_s: tuple[float, ...]
    supposed_tok_s: tuple[float, ...]
    baseline_tok_s: float | None
    simulated: bool


def what_if_info(info: AcceptInfo, accept_length: float, *, limit: int = 12) -> WhatIfInfo:
    """Return the settings that would be fastest at `accept_length`, each at its shortest step."""
    shortest: dict[str, Step] = {}
    for step in info.steps:
        known = shortest.get(step.setting)
        if not step.is_baseline and (known is None or step.step_time_ms < known.step_time_ms):
            shortest[step.setting] = step
    chosen = sorted(shortest.values(), key=lambda s: s.step_time_ms)[:limit]
    base = [1000 * s.accept_length / s.step_time_ms for s in info.steps if s.is_baseline]
    return WhatIfInfo(
        accept_length=accept_length,
        settings=tuple(s.setting for s in chosen),
        measured_tok_s=tuple(1000 * s.accept_length / s.step_time_ms for s in chosen),
        supposed_tok_s=tuple(1000 * accept_length / s.step_time_ms for s in chosen),
        baseline_tok_s=max(base, default=None),
        simulated=info.simulated,
    )


def top_settings(
    study: Study, records: Sequence[TrialRecord], limit: int, first: str | None = None
) -> list[Standing]:
    """Return the best settings by the first objective, and the baseline after them.

    The setting whose key is `first` stands before all; those that break a limit stand last.
    """
    objective = study.objectives[0]
    found = standings(records, study.objectives[:1], study.slos)
    ranked = sorted(
        (s for s in found if not s.is_baseline),
        key=lambda s: (s.key != first, bool(s.broken), -objective.gain(s.values[0])),
    )
    return ranked[:limit] + [s for s in found if s.is_baseline]
