"""What a study wants: objectives and limits, and their numbers in a record; pure."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

from sweeper.errors import UserError
from sweeper.records import Measurement, Purpose, TrialRecord, TrialState
from sweeper.space import suggest
from sweeper.statistics.trend import Sample, Trend, sample_of, trend_of

#: Every number of a measurement can be an objective or a limit.
METRICS: tuple[str, ...] = tuple(
    f.name for f in fields(Measurement) if f.type in (int, float, float | None, int | None)
)

#: Metrics whose number in each pass is known: they are alike but for the number of GPUs.
_BY_PASS = frozenset({"output_tok_s", "output_tok_s_per_gpu"})
_Z = 1.959964

_SLO = re.compile(r"^\s*(?:([\w-]+)\.)?(\w+)\s*(<=|>=|<|>)\s*([-+.\deE]+)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One number to be made large or small.

    Attributes:
        metric: Name of a field of `Measurement`.
        maximize: Whether more is better.
        workload: The workload it is read from; the first one if None.
    """

    metric: str
    maximize: bool = True
    workload: str | None = None

    @property
    def label(self) -> str:
        """Its name for people, "output_tok_s (single)"."""
        return f"{self.metric} ({self.workload})" if self.workload else self.metric

    def value(self, record: TrialRecord) -> float | None:
        """Return the number, or None where it was not measured."""
        return _metric(record, self.metric, self.workload)

    def gain(self, value: float) -> float:
        """Return `value` so that more is better."""
        return value if self.maximize else -value


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """A limit that a setting must keep, as "busy.ttft_p99_ms < 500".

    Attributes:
        metric: Name of a field of `Measurement`.
        operator: How the number must stand to the bound.
        bound: The bound.
        workload: The workload it is read from; the study's first one if None.
        first: That one's name: a record may begin with another, or hold only another. None takes
            the record's first.
    """

    metric: str
    operator: str
    bound: float
    workload: str | None = None
    first: str | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """The limit as it is written."""
        where = f"{self.workload}." if self.workload else ""
        return f"{where}{self.metric} {self.operator} {self.bound:g}"

    def excess(self, record: TrialRecord) -> float | None:
        """Return by how much the record breaks it; 0 or less where it keeps it, None unknown."""
        value = _metric(record, self.metric, self.workload or self.first)
        if value is None:
            return None
        over = value - self.bound if self.operator[0] == "<" else self.bound - value
        if over == 0 and self.operator in ("<", ">"):
            return math.ulp(0.0)  # the bound itself breaks it, by the least there is
        return over


def parse_slo(text: str, workloads: Sequence[str]) -> Slo:
    """Read one limit.

    Args:
        text: What is written.
        workloads: Names of the study's workloads, in their order.

    Raises:
        UserError: It is no comparison of a metric with a number.
    """
    match = _SLO.match(text)
    if match is None:
        raise UserError(f"limit {text!r} is not of the form 'ttft_p99_ms < 500'")
    workload, metric, operator, bound = match.groups()
    check_metric(metric)
    if workload is not None and workload not in workloads:
        raise UserError(f"limit {text!r} names no workload{suggest(workload, workloads)}")
    try:
        limit = float(bound)
    except ValueError:
        raise UserError(f"limit {text!r}: {bound!r} is no number") from None
    return Slo(
        metric=metric,
        operator=operator,
        bound=limit,
        workload=workload,
        first=next(iter(workloads), None),
    )


def check_metric(metric: str) -> None:
    """Raise UserError if no measurement has such a number."""
    if metric not in METRICS:
        raise UserError(f"{metric!r} is not measured{suggest(metric, METRICS)}")


def _metric(record: TrialRecord, metric: str, workload: str | None) -> float | None:
    measurement = record.measurement(workload)
    if measurement is None:
        return None
    value = getattr(measurement, metric)
    return None if value is None else float(value)


def values(record: TrialRecord, objectives: Sequence[Objective]) -> tuple[float, ...] | None:
    """Return the objectives' numbers, or None if the trial is not complete or lacks one."""
    if record.state is not TrialState.COMPLETE:
        return None
    found = [objective.value(record) for objective in objectives]
    return tuple(v for v in found if v is not None) if None not in found else None


def broken_slos(record: TrialRecord, slos: Sequence[Slo]) -> tuple[str, ...]:
    """Return the limits that the record breaks, or that it leaves unmeasured."""
    return tuple(slo.text for slo in slos if (e := slo.excess(record)) is None or e > 0)


def sample(record: TrialRecord, objective: Objective) -> Sample | None:
    """Return an objective's number of one launch, by pass where that is known; None if missing.

    With a single pass its noise is taken from the interval over requests, where there is no
    speculation: then all requests of a load are equally fast but for noise.
    """
    value, measurement = objective.value(record), record.measurement(objective.workload)
    if value is None or measurement is None:
        return None
    passes: tuple[float, ...] = (value,)
    if objective.metric in _BY_PASS and measurement.repeats_tok_s and measurement.output_tok_s:
        share = value / measurement.output_tok_s
        passes = tuple(speed * share for speed in measurement.repeats_tok_s)
    low, high = measurement.output_tok_s_low, measurement.output_tok_s_high
    single = None
    if len(passes) == 1 and measurement.accept_length is None and low and high:
        single = math.log(high / low) / (2 * _Z)
    return sample_of(record, passes, single)


def trend(records: Iterable[TrialRecord], objective: Objective) -> Trend:
    """Return how the baseline's number moved over the sweep."""
    complete = [r for r in records if r.state is TrialState.COMPLETE]
    keys = baseline_keys(complete)
    found = [sample(r, objective) for r in complete if r.trial.launch.key in keys]
    return trend_of([s for s in found if s is not None])


def baseline_keys(records: Iterable[TrialRecord]) -> frozenset[str]:
    """Return the launch keys that some trial ran as the baseline.

    A confirmation of the baseline is one too: it is the only one whose point is empty.
    """
    return frozenset(
        r.trial.launch.key
        for r in records
        if r.trial.purpose is Purpose.BASELINE or not r.trial.point
    )
