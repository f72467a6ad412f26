"""The node's own speed over a sweep, from the baseline measured again and again. Pure.

    baseline launches --trend_of--> Trend --factor(sample)--> the node then, 1 at its level

A sweep of hours sees warm and cold rooms and other users. Where the baseline's launches differ by
more than chance explains, a value is divided by what the baseline showed around it: between two
launches of it, on the same slot, the straight line through their logarithms. Several slots are
unlike machines besides: where each one's launches agree and those of different slots do not, a
value is divided by what the baseline showed on its slot.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from statistics import NormalDist, fmean

from sweeper.records import TrialRecord
from sweeper.statistics.intervals import Drift, drift, student_t

#: Relative standard deviation between launches of one setting, assumed until it is measured by
#: relaunching. Public figures: below 0.3 % for SGLang alone on a node, 1 to 3 % for others.
LAUNCH_NOISE = 0.01
#: A baseline that spreads wider than this share of chance's own spreads has drifted.
_CONFIDENCE = 0.99
_P_VALUE = 0.05
#: Standard deviations by which two launches of the baseline differ where the node jumped.
_JUMP = 3.0
#: Bends of the baseline from which the smaller ones tell which of the others are jumps.
_MANY_BENDS = 4
#: A third of normal values lie closer to 0 than so many standard deviations.
_THIRD = 0.4307
#: Freedom of as many second differences, each of which shares launches with its neighbours
#: (18/35: von Neumann, Kent, Bellinson and Hart 1941).
_BEND_FREEDOM = 18 / 35


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One number of one launch.

    Attributes:
        number: The trial's number.
        place: Host and slot.
        time_s: Engine time in the middle of the measurement, since 1970 for a real engine.
        passes: The number in each pass over the prompts, above 0.
        log: Mean logarithm of the passes.
        squares: Sum of squares of the passes' logarithms about it.
        single: Relative standard deviation of one pass, where it was seen otherwise than by
            comparing passes; None if it was not.
    """

    number: int
    place: str
    time_s: float
    passes: tuple[float, ...]
    log: float
    squares: float
    single: float | None = None


def sample_of(
    record: TrialRecord, passes: tuple[float, ...], single: float | None = None
) -> Sample | None:
    """Return a launch's number with its time and place; None where it has no logarithm."""
    if not passes or min(passes) <= 0:
        return None
    logs = [math.log(v) for v in passes]
    middle = fmean(logs)
    host = record.host
    scale = record.server.time_scale if record.server else 1.0
    phase = record.phases_s.get
    spent_s = phase("turn", 0.0) + phase("start", 0.0) + phase("measure", 0.0) / 2
    return Sample(
        number=record.trial.number,
        place=f"{host.host}/{host.slot}" if host else "",
        time_s=datetime.fromisoformat(record.started_at).timestamp() * scale + spent_s,
        passes=passes,
        log=middle,
        squares=sum((x - middle) ** 2 for x in logs),
        single=single,
    )


def pass_noise(samples: Sequence[Sample]) -> tuple[float, int]:
    """Return the relative variance of a pass about its launch, pooled, and its freedom.

    Where no launch has two passes it is the mean of what was seen otherwise, with freedom 0.
    """
    freedom = sum(len(s.passes) - 1 for s in samples)
    if freedom:
        return sum(s.squares for s in samples) / freedom, freedom
    seen = [s.single**2 for s in samples if s.single is not None]
    return (fmean(seen) if seen else 0.0), 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How the baseline's number moved.

    Attributes:
        level: Geometric mean over the baseline's launches; None without any.
        anchors: Place -> the baseline's launches there, in time.
        drifted: Whether those of one slot differ by more than chance explains.
        uneven: Whether the slots differ by more than chance explains.
        noise: Relative standard deviation of a launch that chance explains.
        line: Slope and test over the place with the most launches; None of fewer than three.
    """

    level: float | None = None
    anchors: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    drifted: bool = False
    uneven: bool = False
    noise: float = LAUNCH_NOISE
    line: Drift | None = None

    @property
    def places(self) -> Mapping[str, float]:
        """Slot -> the mean logarithm of the baseline's launches there."""
        return {place: fmean(s.log for s in found) for place, found in self.anchors.items()}

    @property
    def swing(self) -> tuple[float, float]:
        """The lowest and the highest launch of the baseline by its level, less 1."""
        logs = [s.log for samples in self.anchors.values() for s in samples]
        if self.level is None or not logs:
            return 0.0, 0.0
        return math.exp(min(logs)) / self.level - 1, math.exp(max(logs)) / self.level - 1

    def around(self, sample: Sample) -> tuple[tuple[Sample, float], ...]:
        """Return the baseline's launches around `sample` on its slot, with weights that add to 1.

        Empty where the slot has none.
        """
        here = self.anchors.get(sample.place, ())
        before = [a for a in here if a.time_s <= sample.time_s]
        after = [a for a in here if a.time_s >= sample.time_s]
        if not before or not after:
            nearest = before[-1:] or after[:1]
            return tuple((a, 1.0) for a in nearest)
        left, right = before[-1], after[0]
        if left.time_s == right.time_s:
            # Times that tell nothing: all of that moment count alike.
            same = [a for a in here if a.time_s == left.time_s]
            return tuple((a, 1 / len(same)) for a in same)
        share = (sample.time_s - left.time_s) / (right.time_s - left.time_s)
        return (left, 1 - share), (right, share)

    def factor(self, sample: Sample | None) -> float:
        """Return what the baseline showed around `sample` by its level; 1 without drift.

        Where only the slots differ it is what the baseline showed on the sample's slot by its
        level; 1 on a slot where it never ran.
        """
        if sample is None or self.level is None or not (self.drifted or self.uneven):
            return 1.0
        if not self.drifted:
            here = self.anchors.get(sample.place)
            return math.exp(fmean(s.log for s in here)) / self.level if here else 1.0
        around = self.around(sample)
        if not around:
            return 1.0
        return math.exp(sum(weight * a.log for a, weight in around)) / self.level

    def doubt(self, sample: Sample | None) -> float:
        """Return the share by which a value may be wrong, because of the node.

        Where it jumped that is the difference of the baseline's launches before and after, if
        chance does not explain it; nobody knows on which side of the jump the value lies. On a
        slot where the baseline never ran it is the difference between those where it did.
        """
        if sample is None:
            return 0.0
        if self.uneven and sample.place not in self.anchors:
            levels = self.places.values()
            return math.expm1(max(levels) - min(levels))
        if not self.drifted:
            return 0.0
        logs = [a.log for a, _ in self.around(sample)]
        gap = max(logs) - min(logs) if logs else 0.0
        return math.expm1(gap) if gap > _JUMP * math.sqrt(2) * self.noise else 0.0


def trend_of(samples: Sequence[Sample]) -> Trend:
    """Return the trend of the baseline's launches.

    They have drifted if their spread about the mean of their slot exceeds the 99 % quantile of
    chi squared for launches that differ by LAUNCH_NOISE and by the noise of their passes, or if
    five or more of one slot have a trend (Mann-Kendall, p below 0.05) of more than LAUNCH_NOISE
    in all. The slots are uneven if their means spread more widely than the same noise explains.
    """
    if not samples:
        return Trend()
    places: dict[str, list[Sample]] = {}
    for sample in sorted(samples, key=lambda s: (s.time_s, s.number)):
        places.setdefault(sample.place, []).append(sample)
    logs = [s.log for s in samples]
    within, between = _squares(list(places.values()))
    most = max(places.values(), key=len)
    line = drift([math.exp(s.log) for s in most], [s.time_s for s in most])
    span_h = (most[-1].time_s - most[0].time_s) / 3600.0
    steady = (
        line is None
        or line.p_value >= _P_VALUE
        or abs(line.share_per_hour) * span_h < LAUNCH_NOISE
    )
    noise = _expected_noise(samples)
    return Trend(
        level=math.exp(fmean(logs)),
        anchors={place: tuple(found) for place, found in places.items()},
        drifted=_is_too_wide(within, len(samples) - len(places), noise) or not steady,
        uneven=_is_too_wide(between, len(places) - 1, noise),
        noise=noise,
        line=line,
    )


def _expected_noise(samples: Sequence[Sample]) -> float:
    square, freedom = pass_noise(samples)
    if freedom:  # few passes may have looked quieter than they are
        square *= (student_t(0.975, freedom) / NormalDist().inv_cdf(0.975)) ** 2
    return math.sqrt(LAUNCH_NOISE**2 + square / fmean(len(s.passes) for s in samples))


def _squares(groups: Sequence[Sequence[Sample]]) -> tuple[float, float]:
    """Return the sums of squares of logarithms about the means of their group, and of those
    means about the mean of all."""
    middle = fmean(s.log for group in groups for s in group)
    centres = [fmean(s.log for s in group) for group in groups]
    within = sum((s.log - c) ** 2 for c, group in zip(centres, groups, strict=True) for s in group)
    between = sum(len(g) * (c - middle) ** 2 for c, g in zip(centres, groups, strict=True))
    return within, between


def _is_too_wide(squares: float, freedom: int, noise: float) -> bool:
    return freedom > 0 and squares / noise**2 > _chi_squared(_CONFIDENCE, freedom)


def _chi_squared(p: float, df: int) -> float:
    """Return a quantile of chi squared (Wilson and Hilferty 1931; within 1 % from df 2 on)."""
    if df == 1:
        return NormalDist().inv_cdf((1 + p) / 2) ** 2
    shrink = 2 / (9 * df)
    return float(df * (1 - shrink + NormalDist().inv_cdf(p) * math.sqrt(shrink)) ** 3)


def roughness(trend: Trend) -> tuple[float, float]:
    """Return a sum of squares of chance between the baseline's launches, and its freedom.

    Each launch of it with one before and one after is compared with the straight line between
    those two, which a slow drift does not disturb. Of independent launches with variance v the
    difference has v (1 + w^2 + (1 - w)^2), with w the weight of the one after. Of four or more
    those beyond three standard deviations, as the smallest third shows them, are jumps of the
    node and left out: a node that is slow for a while makes up to four.
    """
    bends: list[float] = []
    for samples in trend.anchors.values():
        for (a, b), (_, c) in pairwise(pairwise(samples)):
            span_s = c.time_s - a.time_s
            w = (b.time_s - a.time_s) / span_s if span_s > 0 else 0.5
            bend = b.log - ((1 - w) * a.log + w * c.log)
            bends.append(abs(bend) / math.sqrt(1 + w**2 + (1 - w) ** 2))
    if len(bends) >= _MANY_BENDS:
        limit = _JUMP * sorted(bends)[(len(bends) - 1) // 3] / _THIRD
        bends = [bend for bend in bends if bend <= limit]
    return _BEND_FREEDOM * sum(bend**2 for bend in bends), _BEND_FREEDOM * len(bends)
