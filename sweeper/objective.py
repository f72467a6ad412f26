"""Objectives, limits, the Pareto front and the choice among measured settings; pure.

A setting is judged by the median over its complete trials. Of settings within a tie of the best
one the simpler wins: fewer draft steps, then fewer draft tokens, then fewer things set.
"""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from sweeper.errors import UserError
from sweeper.records import Measurement, Purpose, TrialRecord, TrialState
from sweeper.space import suggest

#: Settings whose medians differ by less are a tie (DESIGN: ties within 1 %).
TIE = 0.01

#: Every number of a measurement can be an objective or a limit.
METRICS: tuple[str, ...] = tuple(
    f.name for f in fields(Measurement) if f.type in (int, float, float | None, int | None)
)

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
        return value - self.bound if self.operator[0] == "<" else self.bound - value


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One setting over all of its complete trials.

    Attributes:
        key: Identity of its launch.
        records: Its complete trials, by number.
        values: Median of each objective.
        is_baseline: Whether it is the baseline.
        broken: Limits that it breaks in most of its trials.
    """

    key: str
    records: tuple[TrialRecord, ...]
    values: tuple[float, ...]
    is_baseline: bool
    broken: tuple[str, ...]

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
    """Return one standing for each setting that has a complete trial, in order of first trial."""
    groups: dict[str, list[TrialRecord]] = {}
    for record in sorted(records, key=lambda r: r.trial.number):
        if values(record, objectives) is not None:
            groups.setdefault(record.trial.launch.key, []).append(record)
    found = []
    for key, group in groups.items():
        rows = [v for r in group if (v := values(r, objectives)) is not None]
        broken = [broken_slos(r, slos) for r in group]
        found.append(
            Standing(
                key=key,
                records=tuple(group),
                values=tuple(statistics.median(column) for column in zip(*rows, strict=True)),
                is_baseline=any(r.trial.purpose is Purpose.BASELINE for r in group),
                broken=broken[-1] if sum(map(bool, broken)) * 2 > len(broken) else (),
            )
        )
    return found


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

    Settings that break a limit do not count. Among those within a tie of the first the simpler
    one is taken.
    """
    allowed = [s for s in found if not s.broken and not s.is_baseline]
    if not allowed:
        return None
    first = objectives[0]
    top = max(first.gain(s.values[0]) for s in allowed)
    tied = [s for s in allowed if first.gain(s.values[0]) >= top - abs(top) * TIE]
    return min(tied, key=lambda s: (s.simplicity, -first.gain(s.values[0])))


def baseline(found: Sequence[Standing]) -> Standing | None:
    """Return the baseline's standing, if it was measured."""
    return next((s for s in found if s.is_baseline), None)


def by_key(records: Iterable[TrialRecord]) -> Mapping[str, list[TrialRecord]]:
    """Group records by the identity of their launch."""
    groups: dict[str, list[TrialRecord]] = {}
    for record in records:
        groups.setdefault(record.trial.launch.key, []).append(record)
    return groups
