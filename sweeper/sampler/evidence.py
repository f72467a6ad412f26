"""What a finished trial teaches the model, as plain numbers."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweeper.errors import Fault
from sweeper.objective import Slo
from sweeper.records import Measurement, TrialRecord, TrialState
from sweeper.speculation import shape_of
from sweeper.study import Study

#: Metric -> (a, b) in log metric = a log(accept length) + b log(step time), one stream or many.
SPEED_LAWS: Mapping[str, tuple[float, float]] = {
    "output_tok_s": (1.0, -1.0),
    "output_tok_s_low": (1.0, -1.0),
    "output_tok_s_high": (1.0, -1.0),
    "output_tok_s_per_gpu": (1.0, -1.0),
    "output_tok_s_per_user": (1.0, -1.0),
    "tpot_p50_ms": (-1.0, 1.0),
    "tpot_p90_ms": (-1.0, 1.0),
    "e2e_p50_ms": (-1.0, 1.0),
    "e2e_p99_ms": (-1.0, 1.0),
    "window_s": (-1.0, 1.0),
    "gap_p50_ms": (0.0, 1.0),
    "step_time_ms": (0.0, 1.0),
}
#: Any other metric is modelled by its own log.
NO_LAW = (0.0, 1.0)
#: Numbers at or below zero have no log; a metric that is zero is taken as this.
TINY = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A number that the search looks at: an objective, or what a limit is about.

    Attributes:
        metric: Field of `Measurement`.
        workload: Name of the workload it is read from.
        maximize: Whether more is better; for a limit, whether it is a lower one.
        bound: The limit; None for an objective.
    """

    metric: str
    workload: str
    maximize: bool
    bound: float | None = None

    @property
    def law(self) -> tuple[float, float]:
        """Exponents of accept length and step time in it."""
        return SPEED_LAWS.get(self.metric, NO_LAW)

    @property
    def physical(self) -> bool:
        """Whether it is made of accept length and step time."""
        return self.metric in SPEED_LAWS


def targets_of(study: Study) -> tuple[Target, ...]:
    """Return the objectives, then what the limits are about."""
    first = study.workloads[0].name
    objectives = [
        Target(metric=o.metric, workload=o.workload or first, maximize=o.maximize)
        for o in study.objectives
    ]
    return (*objectives, *(_limit(slo, first) for slo in study.slos))


def _limit(slo: Slo, first: str) -> Target:
    return Target(
        metric=slo.metric,
        workload=slo.workload or first,
        maximize=slo.operator[0] == ">",
        bound=slo.bound,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One finished trial.

    Attributes:
        number: The trial's number.
        key: Its launch key.
        values: The targets' numbers, None where not measured.
        accepted: Workload -> prompt kind -> histogram of accepted draft tokens a step.
        gpu_s: GPU-seconds that it took; None if nothing was started.
        unfit: Whether the setting itself cannot work here.
    """

    number: int
    key: str
    values: tuple[float | None, ...]
    accepted: Mapping[str, Mapping[str, tuple[float, ...]]]
    gpu_s: float | None
    unfit: bool

    @property
    def measured(self) -> bool:
        """Whether the first objective was measured."""
        return self.values[0] is not None


def evidence_of(record: TrialRecord, targets: Sequence[Target]) -> Evidence:
    """Return what `record` teaches; a failure of the machine teaches only its price.

    What the installation lacks it lacks for the whole sweep, so a setting that needs it is unfit.
    """
    useful = record.state in (TrialState.COMPLETE, TrialState.PRUNED)
    by_fault = record.failure is None or record.failure.policy.fault is not Fault.MACHINE
    return Evidence(
        number=record.trial.number,
        key=record.trial.launch.key,
        values=tuple(_value(record, target) if useful else None for target in targets),
        accepted=_accepted(record) if useful else {},
        gpu_s=record.gpu_hours * 3600.0 if record.phases_s else None,
        unfit=record.state is TrialState.INFEASIBLE and by_fault,
    )


def _value(record: TrialRecord, target: Target) -> float | None:
    measurement = record.measurement(target.workload)
    value = None if measurement is None else getattr(measurement, target.metric)
    # How far below its limit a number lies does not matter; a zero would have no log.
    floor = TINY if target.bound is None else max(0.01 * target.bound, TINY)
    return None if value is None else max(float(value), floor)


def _accepted(record: TrialRecord) -> dict[str, dict[str, tuple[float, ...]]]:
    shape = shape_of(record.trial.launch.flags)
    if shape is None or shape.depth < 1:
        return {}
    found: dict[str, dict[str, tuple[float, ...]]] = {}
    for measurement in record.measurements:
        # Not from the requests: a stored record comes without them.
        summed = {
            kind: tuple(map(float, counts))
            for kind, counts in (measurement.accepted_by_kind or {}).items()
            if sum(counts)
        }
        if not summed and (whole := _whole(measurement, shape.depth)):
            summed = {"": whole}
        if summed:
            found[measurement.workload] = {
                kind: _to_depth(counts, shape.depth) for kind, counts in summed.items()
            }
    return found


def _to_depth(counts: tuple[float, ...], depth: int) -> tuple[float, ...]:
    """Return a histogram with a count for each number of draft tokens up to the depth.

    SGLang's end at the most that a step accepted; the next position was tried and never accepted.
    """
    return counts + (0.0,) * (depth + 1 - len(counts))


def _whole(measurement: Measurement, depth: int) -> tuple[float, ...] | None:
    """Return a histogram over all requests, made up from what there is of it."""
    if measurement.accepted_histogram and sum(measurement.accepted_histogram):
        return tuple(map(float, measurement.accepted_histogram))
    length, tokens = measurement.accept_length, measurement.output_tokens
    if not length or not tokens or length < 1:
        return None
    steps = tokens / length
    if measurement.accepted_by_position:
        survive = [1.0, *measurement.accepted_by_position[:depth], 0.0]
    else:
        # One chance at all positions that gives this length: 1 + r + r^2 + ... by bisection.
        low, high = 0.0, 1.0
        for _ in range(40):
            rate = (low + high) / 2
            low, high = (
                (rate, high) if sum(rate**i for i in range(depth + 1)) < length else (low, rate)
            )
        survive = [*(low**i for i in range(depth + 1)), 0.0]
        # Where the accepted tokens lie is a guess: count it as a tenth.
        steps /= 10
    return tuple(max(a - b, 0.0) * steps for a, b in itertools.pairwise(survive))
