"""Winner by baseline with an interval, from launches that were measured several times. Pure.

standings, trend --repeats_of--> Repeats: chance between launches of one setting
winner, baseline, Repeats --ratio_of--> Interval
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean

from sweeper.judging.standings import Standing, contenders
from sweeper.objective import sample
from sweeper.records import TrialRecord
from sweeper.statistics.intervals import Interval, student_t
from sweeper.statistics.trend import LAUNCH_NOISE, Sample, Trend, pass_noise, roughness
from sweeper.study import Study

#: How many launches' worth of evidence the assumed LAUNCH_NOISE counts as once launches of one
#: setting were repeated.
_PRIOR_FREEDOM = 2
_ALPHA = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """What launches of one setting, repeated, showed of chance between launches.

    Attributes:
        squares: Sum of squares of logarithms about the mean of their setting.
        freedom: Its degrees of freedom; 0 if nothing was repeated.
    """

    squares: float = 0.0
    freedom: float = 0.0


def repeats_of(found: Sequence[Standing], moved: Trend, study: Study) -> Repeats:
    """Return the chance between launches of one setting, drift taken out.

    Where the baseline was used to take out drift it cannot show chance about itself; then its
    bends do. Where it was used to take out the slots' differences it shows chance about the mean
    of each slot. Launches around which the node jumped are left out.
    """
    squares, freedom = 0.0, 0.0
    for standing in found:
        if standing.is_baseline and moved.drifted:
            continue
        launches = standing.records if standing.is_baseline else standing.judged
        samples = [s for s in _samples(launches, study) if not moved.doubt(s)]
        logs = [_corrected_log(s, moved) for s in samples]
        known = len(moved.anchors) - 1 if standing.is_baseline and moved.uneven else 0
        if len(logs) > 1 + known:
            centre = fmean(logs)
            squares += sum((x - centre) ** 2 for x in logs)
            freedom += len(logs) - 1 - known
    if moved.drifted:
        bends = roughness(moved)
        squares, freedom = squares + bends[0], freedom + bends[1]
    return Repeats(squares=squares, freedom=freedom)


def ratio_of(
    winner: Standing,
    base: Standing,
    found: Sequence[Standing],
    moved: Trend,
    repeats: Repeats,
    study: Study,
) -> Interval | None:
    """Return winner by baseline in the first objective, above 1 where the winner is better.

    Without drift the baseline's launches count alike: nobody picked it for being fast, so those
    of the search are as good as those of the confirmations, unless it speculates, when other
    prompts may be easier. With drift each launch of the winner is compared with the baseline's
    around it, and with several slots with those on its own slot; so they get weights.
    """
    steady = all(m.accept_length is None for r in base.records for m in r.measurements)
    a, b = (
        _samples(winner.judged, study),
        _samples(base.records if steady else base.judged, study),
    )
    if not a or not b:
        return None
    a = [s for s in a if not moved.doubt(s)] or a
    doubt = max(moved.doubt(s) for s in a)
    weights = _weights(a, b, moved)
    b = [
        s for s in {**_anchors(moved), **{s.number: s for s in b}}.values() if s.number in weights
    ]
    ratio = launch_ratio(
        [s.passes for s in a],
        [s.passes for s in b],
        weights=[weights[s.number] for s in b],
        repeats=repeats,
        candidates=_candidates(found, winner, study),
        # Of single passes only a baseline's own requests tell the noise.
        seen=pass_noise(_samples(base.records, study))[0],
    )
    ratio = replace(ratio, low=ratio.low / (1 + doubt), high=ratio.high * (1 + doubt))
    if study.objectives[0].maximize:
        return ratio
    return Interval(low=1 / ratio.high, mid=1 / ratio.mid, high=1 / ratio.low)


def launch_ratio(
    a: Sequence[Sequence[float]],
    b: Sequence[Sequence[float]],
    *,
    weights: Sequence[float] | None = None,
    repeats: Repeats | None = None,
    candidates: int = 1,
    seen: float = 0.0,
) -> Interval:
    """Return how many times as large `a` is as `b`, with its interval.

    Each inner sequence is one launch: its passes over the same prompts. On logarithms, with na
    launches of a and Na passes, and launches j of b with weight w[j] and N[j] passes, the squared
    half width is

        z^2 LAUNCH_NOISE^2 (1/na + sum w^2) + t^2 s^2 (1/Na + sum w^2/N)

    s^2 is the variance of passes about the mean of their launch, pooled over both sides, t its
    Student quantile. A launch's own noise cannot be seen in one launch, so it is assumed. Where
    launches were repeated, with sum of squares S and freedom f, it is

        t^2 v (1/na + sum w^2),    v = (2 v0 + S) / (2 + f),    freedom of t: 2 + f

    v0 is the assumed variance with that of the passes of a launch. Quantiles are those of 0.05 by
    `candidates` (Bonferroni), so that the best of several is not taken for better by luck.

    Args:
        a: Launches of the one setting.
        b: Launches of the other.
        weights: How much each launch of b counts, 1 in all; alike by default.
        repeats: What repeated launches showed; None for nothing.
        candidates: Out of how many settings a was picked.
        seen: Variance of a pass where no launch has two.
    """
    weights = weights or [1 / len(b)] * len(b)
    logs = [[[math.log(v) for v in launch] for launch in side] for side in (a, b)]
    inner, freedom = 0.0, 0
    for launch in (*logs[0], *logs[1]):
        centre = fmean(launch)
        inner += sum((x - centre) ** 2 for x in launch)
        freedom += len(launch) - 1
    noise = inner / freedom if freedom else seen
    p = 1 - _ALPHA / (2 * max(candidates, 1))
    z = NormalDist().inv_cdf(p)
    squared = [w**2 for w in weights]
    launches = 1 / len(a) + sum(squared)
    if repeats is None or not repeats.freedom:
        passes = 1 / sum(map(len, a)) + sum(
            w / len(launch) for w, launch in zip(squared, b, strict=True)
        )
        t = student_t(p, freedom) if freedom else z
        square = (z * LAUNCH_NOISE) ** 2 * launches + t**2 * noise * passes
    else:
        expected = LAUNCH_NOISE**2 + noise / fmean(len(launch) for launch in (*a, *b))
        t = student_t(p, _PRIOR_FREEDOM + repeats.freedom)
        square = t**2 * launch_variance(expected, repeats) * launches
    middle = fmean(fmean(launch) for launch in logs[0]) - sum(
        w * fmean(launch) for w, launch in zip(weights, logs[1], strict=True)
    )
    half = math.sqrt(square)
    return Interval(
        low=math.exp(middle - half), mid=math.exp(middle), high=math.exp(middle + half)
    )


def launch_variance(expected: float, repeats: Repeats) -> float:
    """Return the variance between launches: the assumed one and what repeats showed, pooled."""
    if not repeats.freedom:
        return expected
    total = _PRIOR_FREEDOM + repeats.freedom
    return (_PRIOR_FREEDOM * expected + repeats.squares) / total


def _candidates(found: Sequence[Standing], winner: Standing, study: Study) -> int:
    """Return out of how many settings, about as good, the winner was picked."""
    allowed = [s for s in found if not s.broken and not s.is_baseline]
    allowed = [s for s in allowed if s.is_confirmed] or allowed
    return len(contenders(allowed, winner, study.objectives))


def _weights(a: Sequence[Sample], b: Sequence[Sample], moved: Trend) -> dict[int, float]:
    """Return how much each launch of the baseline counts beside `a`: by number, 1 in all.

    Each launch of `a` gives an equal share to the baseline around it, or without drift to the
    launches of `b` on its slot, or where neither exists to all of `b`.
    """
    drifted = moved.drifted and all(moved.around(s) for s in a)
    weights: dict[int, float] = {}
    for one in a:
        beside = moved.around(one) if drifted else ()
        if not beside:
            here = [s for s in b if s.place == one.place] or b
            beside = tuple((s, 1 / len(here)) for s in here)
        for anchor, weight in beside:
            weights[anchor.number] = weights.get(anchor.number, 0.0) + weight / len(a)
    return weights


def _anchors(moved: Trend) -> dict[int, Sample]:
    return {s.number: s for place in moved.anchors.values() for s in place}


def _samples(records: Sequence[TrialRecord], study: Study) -> list[Sample]:
    found = [sample(r, study.objectives[0]) for r in records]
    return [s for s in found if s is not None]


def _corrected_log(one: Sample, moved: Trend) -> float:
    return one.log - math.log(moved.factor(one))
