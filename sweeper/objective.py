"""Objectives, limits, the Pareto front and the choice among measured settings; pure.

A setting is judged by the median over its complete trials, of its confirmations where it has
some, each against the baseline around it where the node drifted. The best one is the best by
median less its standard error; of settings within a tie of it the simpler wins: fewer draft
steps, then fewer draft tokens, then fewer things set.
"""

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from sweeper.errors import UserError
from sweeper.records import Measurement, Purpose, TrialRecord, TrialState
from sweeper.space import suggest
from sweeper.statistics.trend import LAUNCH_NOISE, Sample, Trend, sample_of, trend_of

#: Settings whose medians differ by less are a tie (DESIGN: ties within 1 %).
TIE = 0.01

#: Every number of a measurement can be an objective or a limit.
METRICS: tuple[str, ...] = tuple(
    f.name for f in fields(Measurement) if f.type in (int, float, float | None, int | None)
)

#: Metrics whose number in each pass is known: they are alike but for the number of GPUs.
_BY_PASS = frozenset({"output_tok_s", "output_tok_s_per_gpu"})
#: A setting may have so many more degenerate answers than the baseline, as a share of all.
DEGENERATE_MARGIN = 0.2
#: Standard errors of a difference beyond which a setting no longer contends.
_BEHIND = 2.0
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
    """A limit that a setting must keep, as "busy.ttft_p99_ms < 500"."""

    metric: str
    operator: str
    bound: float
    workload: str | None = None

    @property
    def text(self) -> str:
        """The limit as it is written."""
        where = f"{self.workload}." if self.workload else ""
        return f"{where}{self.metric} {self.operator} {self.bound:g}"

    def excess(self, record: TrialRecord) -> float | None:
        """Return by how much the record breaks it; 0 or less where it keeps it, None unknown."""
        value = _metric(record, self.metric, self.workload)
        if value is None:
            return None
        over = value - self.bound if self.operator[0] == "<" else self.bound - value
        if over == 0 and self.operator in ("<", ">"):
            return math.ulp(0.0)  # the bound itself breaks it, by the least there is
        return over


def parse_slo(text: str, workloads: Sequence[str]) -> Slo:
    """Read one limit.

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
        return Slo(metric=metric, operator=operator, bound=float(bound), workload=workload)
    except ValueError:
        raise UserError(f"limit {text!r}: {bound!r} is no number") from None


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
    """Return the launch keys that some trial ran as the baseline."""
    return frozenset(r.trial.launch.key for r in records if r.trial.purpose is Purpose.BASELINE)


@dataclass(slots=True)
class _Numbers:
    """One record's number of each objective, as it was measured and as a sample."""

    record: TrialRecord
    values: tuple[float, ...]
    samples: tuple[Sample | None, ...]

    def doubted(self, trends: Sequence[Trend]) -> bool:
        """Tell whether the node leaves one of them open."""
        return any(t.doubt(s) for s, t in zip(self.samples, trends, strict=True))

    def corrected(self, trends: Sequence[Trend]) -> tuple[float, ...]:
        """Return them as on the node at its own level."""
        three = zip(self.values, self.samples, trends, strict=True)
        return tuple(v / t.factor(s) for v, s, t in three)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One setting over all of its complete trials.

    Attributes:
        key: Identity of its launch.
        records: Its complete trials, by number.
        values: Median of each objective over the trials it is judged by, drift taken out.
        is_baseline: Whether it is the baseline.
        broken: Limits that it breaks, if most of its trials break one, and broken answers.
        error: Relative standard error of the first value: launches and passes.
    """

    key: str
    records: tuple[TrialRecord, ...]
    values: tuple[float, ...]
    is_baseline: bool
    broken: tuple[str, ...]
    error: float = 0.0

    @property
    def is_confirmed(self) -> bool:
        """Whether it was launched afresh after the search."""
        return any(r.trial.purpose is Purpose.CONFIRM for r in self.records)

    @property
    def judged(self) -> tuple[TrialRecord, ...]:
        """The trials that it is judged by: the confirmations, or all where there is none.

        The search's own launches made it a finalist and so flatter it.
        """
        fresh = tuple(r for r in self.records if r.trial.purpose is Purpose.CONFIRM)
        return fresh or self.records

    @property
    def simplicity(self) -> tuple[float, ...]:
        """Sorts the simpler setting first."""
        launch = self.records[0].trial.launch
        steps = launch.flags.get("speculative-num-steps", 0)
        tokens = launch.flags.get("speculative-num-draft-tokens", 0)
        return (
            float(steps) if isinstance(steps, int | float) else 0.0,
            float(tokens) if isinstance(tokens, int | float) else 0.0,
            float(len(launch.flags) + len(launch.env)),
        )


def standings(
    records: Iterable[TrialRecord], objectives: Sequence[Objective], slos: Sequence[Slo] = ()
) -> list[Standing]:
    """Return one standing for each setting that has a complete trial, in order of first trial.

    Launches around which the node jumped, or whose slot nobody knows, count only where a setting
    has no others.
    """
    groups: dict[str, list[_Numbers]] = {}
    for record in sorted(records, key=lambda r: r.trial.number):
        if (found := values(record, objectives)) is not None:
            samples = tuple(sample(record, o) for o in objectives)
            numbers = _Numbers(record, found, samples)
            groups.setdefault(record.trial.launch.key, []).append(numbers)
    base_keys = baseline_keys(n.record for group in groups.values() for n in group)
    trends = [
        trend_of([s for k in groups if k in base_keys for n in groups[k] if (s := n.samples[i])])
        for i in range(len(objectives))
    ]
    rubbish = max((_degenerate(n.record) for k in base_keys for n in groups[k]), default=None)
    result = []
    for key, group in groups.items():
        plain = Standing(
            key=key,
            records=tuple(n.record for n in group),
            values=(),
            is_baseline=key in base_keys,
            broken=(),
        )
        judged = [n for n in group if n.record.trial.purpose is Purpose.CONFIRM] or group
        sure = [n for n in judged if not n.doubted(trends)] or judged
        rows = [n.corrected(trends) for n in sure]
        broken = [broken_slos(n.record, slos) for n in judged]
        faults: tuple[str, ...] = ()
        if sum(map(bool, broken)) * 2 > len(broken):
            faults = tuple(dict.fromkeys(limit for limits in broken for limit in limits))
        worst = max(_degenerate(n.record) for n in group)
        if rubbish is not None and key not in base_keys and worst > rubbish + DEGENERATE_MARGIN:
            faults = (*faults, f"{worst:.0%} of the answers are broken")
        result.append(
            replace(
                plain,
                values=tuple(statistics.median(column) for column in zip(*rows, strict=True)),
                broken=faults,
                error=_error([n.samples[0] for n in sure]) if objectives else 0.0,
            )
        )
    return result


def _degenerate(record: TrialRecord) -> float:
    return max((m.degenerate_share or 0.0 for m in record.measurements), default=0.0)


def _error(samples: Sequence[Sample | None]) -> float:
    """Return the relative standard error of a setting's number.

    Launches differ by LAUNCH_NOISE; passes by 1.4826 times the median distance of their
    logarithms from their median, which one bad pass does not move.
    """
    logs = [math.log(v) for s in samples if s is not None for v in s.passes]
    if not logs:
        return 0.0
    middle = statistics.median(logs)
    spread = 1.4826 * statistics.median(abs(x - middle) for x in logs) if len(logs) > 2 else 0.0
    return math.sqrt(LAUNCH_NOISE**2 / len(samples) + spread**2 / len(logs))


def dominates(a: Sequence[float], b: Sequence[float], objectives: Sequence[Objective]) -> bool:
    """Tell whether `a` is as good as `b` in all objectives and better in one."""
    gains = [(o.gain(x), o.gain(y)) for o, x, y in zip(objectives, a, b, strict=True)]
    return all(x >= y for x, y in gains) and any(x > y for x, y in gains)


def pareto_front(found: Sequence[Standing], objectives: Sequence[Objective]) -> list[Standing]:
    """Return the settings that keep all limits and that no other such setting dominates."""
    allowed = [s for s in found if not s.broken]
    return [
        s for s in allowed if not any(dominates(o.values, s.values, objectives) for o in allowed)
    ]


def best(found: Sequence[Standing], objectives: Sequence[Objective]) -> Standing | None:
    """Return the best setting that is not the baseline, by the first objective.

    Settings that break a limit or give broken answers do not count, and once some were confirmed
    only those do. Each counts as its median less its standard error; among those within a tie of
    the first the simpler one is taken.
    """
    allowed = [s for s in found if not s.broken and not s.is_baseline]
    allowed = [s for s in allowed if s.is_confirmed] or allowed
    if not allowed:
        return None
    first = objectives[0]

    def sure(standing: Standing) -> float:
        gain = first.gain(standing.values[0])
        return gain - abs(gain) * standing.error

    top = max(map(sure, allowed))
    tied = [s for s in allowed if sure(s) >= top - abs(top) * TIE]
    return min(tied, key=lambda s: (s.simplicity, -sure(s)))


def contenders(
    found: Sequence[Standing], leader: Standing, objectives: Sequence[Objective]
) -> list[Standing]:
    """Return the leader and the settings that may be as good, by two standard errors."""
    first = objectives[0]

    def gap(standing: Standing) -> float:
        behind = first.gain(leader.values[0]) - first.gain(standing.values[0])
        return behind / abs(leader.values[0]) if leader.values[0] else behind

    return [
        s
        for s in found
        if s.key == leader.key or gap(s) <= _BEHIND * math.hypot(leader.error, s.error)
    ]


def baseline(found: Sequence[Standing]) -> Standing | None:
    """Return the baseline's standing, if it was measured."""
    return next((s for s in found if s.is_baseline), None)
