"""How measured settings stand: the Pareto front and the choice among them; pure.

A setting is judged by the median over its complete trials, of its confirmations where it has
some, each against the baseline around it where the node drifted. The best one is the best by
median less its standard error; of settings within a tie of it the simpler wins: fewer draft
steps, then fewer draft tokens, then fewer things set.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sweeper.objective import Objective, Slo, baseline_keys, broken_slos, sample, values
from sweeper.records import Purpose, TrialRecord, TrialState
from sweeper.statistics.trend import LAUNCH_NOISE, Sample, Trend, trend_of

#: Settings whose medians differ by less are a tie.
TIE = 0.01
#: A setting may have so many more degenerate answers than the baseline, as a share of all.
DEGENERATE_MARGIN = 0.2
#: Standard errors of a difference beyond which a setting no longer contends.
_BEHIND = 2.0


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
        values: Median of each objective over the trials it is judged by, drift taken out; of the
            first alone for a baseline that lacks another (`with_baseline`).
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
    ordered = sorted(records, key=lambda r: r.trial.number)
    for record in ordered:
        if (found := values(record, objectives)) is not None:
            samples = tuple(sample(record, o) for o in objectives)
            numbers = _Numbers(record, found, samples)
            groups.setdefault(record.trial.launch.key, []).append(numbers)
    complete = [r for r in ordered if r.state is TrialState.COMPLETE]
    base_keys = baseline_keys(complete)
    # A baseline that lacks an objective, as the accept length without speculation, has no
    # standing, and shows the node and sound answers all the same.
    bases = [r for r in complete if r.trial.launch.key in base_keys]
    trends = [trend_of([s for r in bases if (s := sample(r, o))]) for o in objectives]
    rubbish = max(map(_degenerate, bases), default=None)
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


def with_baseline(
    records: Sequence[TrialRecord], objectives: Sequence[Objective], slos: Sequence[Slo] = ()
) -> list[Standing]:
    """Return the standings, the baseline last and by the first objective where it lacks another.

    Without speculation there is no accept length; the first objective decides all the same.
    """
    found = standings(records, objectives, slos)
    if baseline(found) is None and len(objectives) > 1:
        found += [s for s in standings(records, objectives[:1], slos) if s.is_baseline]
    return found


def numbers(
    standing: Standing, records: Sequence[TrialRecord], objectives: Sequence[Objective]
) -> tuple[float | None, ...]:
    """Return a setting's number of each objective; None where it has none."""
    if len(standing.values) == len(objectives):
        return standing.values
    return tuple(
        next((s.values[0] for s in standings(records, (o,)) if s.key == standing.key), None)
        for o in objectives
    )


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
    """Return the settings that have all objectives, keep all limits and are not dominated by such."""
    allowed = [s for s in found if not s.broken and len(s.values) == len(objectives)]
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
