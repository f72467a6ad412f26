"""Intervals by resampling, the paired comparison of two launches, and drift. Pure.

Every random draw comes from a seed that the caller gives.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median

import numpy as np
from numpy.typing import NDArray

from sweeper.records import RequestTiming

#: Confidence of all intervals.
LEVEL = 0.95
_DRAWS = 2000
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value and the interval that holds it with confidence `level`."""

    low: float
    mid: float
    high: float
    level: float = LEVEL

    def excludes(self, value: float) -> bool:
        """Tell whether `value` lies outside."""
        return not self.low <= value <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A trend of one setting measured several times.

    Attributes:
        level: Median of the values.
        share_per_hour: Theil-Sen slope as a share of `level`; -0.02 is two percent an hour lost.
        centre_s: Median of the times, where the line passes through `level`.
        p_value: Two-sided Mann-Kendall p; at five values it can first fall below 0.05.
    """

    level: float
    share_per_hour: float
    centre_s: float
    p_value: float

    def factor(self, time_s: float) -> float:
        """Return the expected value at `time_s` as a share of `level`; divide by it to correct."""
        return 1.0 + self.share_per_hour * (time_s - self.centre_s) / 3600.0


def paired_ratio(
    a: Sequence[RequestTiming], b: Sequence[RequestTiming], seed: int
) -> Interval | None:
    """Return how many times as fast `a` is as `b`, prompt by prompt.

    A prompt's speed is its tokens by its time, sum n / sum e2e, over good requests. The ratio is
    the geometric mean over the prompts that both have; the interval resamples prompts. With one
    prompt in common the requests take the place of prompts, in order.

    Returns:
        The interval; None where fewer than two pairs exist.
    """
    by_prompt = [_by_prompt(a), _by_prompt(b)]
    common = sorted(by_prompt[0].keys() & by_prompt[1].keys())
    if len(common) == 1:
        lists = [stream_speeds(side[common[0]]) for side in by_prompt]
        pairs = list(zip(*lists, strict=False))
    else:
        pairs = [(_speed(by_prompt[0][p]), _speed(by_prompt[1][p])) for p in common]
    if len(pairs) < 2:
        return None
    logs = np.log([x / y for x, y in pairs])
    draws = np.concatenate(
        [logs[index].mean(axis=1) for index in resamples(len(logs), np.random.default_rng(seed))]
    )
    low, high = np.exp(expanded_quantiles(draws, len(logs)))
    return Interval(low=float(low), mid=float(np.exp(logs.mean())), high=float(high))


def drift(values: Sequence[float], times_s: Sequence[float]) -> Drift | None:
    """Return the trend of `values` measured at `times_s`; None of fewer than three.

    Slope: median over pairs (Sen 1968). Test: Mann-Kendall, normal approximation with corrections
    for ties and continuity (Kendall 1975).
    """
    if len(values) != len(times_s):
        raise ValueError("as many times as values")
    order = sorted(range(len(values)), key=lambda i: times_s[i])
    v, t = [values[i] for i in order], [times_s[i] for i in order]
    n, level = len(v), median(v) if v else 0.0
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n) if t[j] > t[i]]
    if n < 3 or not pairs or level == 0:
        return None
    slope = median((v[j] - v[i]) / (t[j] - t[i]) for i, j in pairs)
    s = sum((v[j] > v[i]) - (v[j] < v[i]) for i, j in pairs)
    ties = sum(c * (c - 1) * (2 * c + 5) for c in Counter(v).values())
    variance = (n * (n - 1) * (2 * n + 5) - ties) / 18
    z = max(abs(s) - 1, 0) / math.sqrt(variance) if variance > 0 else 0.0
    return Drift(
        level=level,
        share_per_hour=slope * 3600.0 / level,
        centre_s=median(t),
        p_value=2 * (1 - NormalDist().cdf(z)),
    )


def resamples(size: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield blocks of index rows, `_DRAWS` rows in all, each about a million cells at most."""
    rows = max(1, min(_DRAWS, 1_000_000 // size))
    for start in range(0, _DRAWS, rows):
        yield rng.integers(0, size, size=(min(rows, _DRAWS - start), size))


def expanded_quantiles(draws: _Floats, size: int) -> _Floats:
    """Return the ends of the bootstrap interval, widened for few values.

    The plain percentile interval is too narrow by sqrt((n - 1) / n) and by Student's t against
    the normal; its quantiles are moved out by both (Hesterberg 2015, The American Statistician
    69, 4, section 5.3).
    """
    tail = NormalDist().cdf(-math.sqrt(size / (size - 1)) * student_t((1 + LEVEL) / 2, size - 1))
    ends: _Floats = np.quantile(draws, [tail, 1 - tail])
    return ends


def student_t(p: float, df: float) -> float:
    """Return a quantile of Student's t, exact for df 1 and 2, else Abramowitz-Stegun 26.7.5."""
    if df == 1:
        return math.tan(math.pi * (p - 0.5))
    if df == 2:
        return (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))
    z = NormalDist().inv_cdf(p)
    return (
        z
        + (z**3 + z) / (4 * df)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * df**3)
    )


def _by_prompt(requests: Sequence[RequestTiming]) -> dict[str, list[RequestTiming]]:
    groups: dict[str, list[RequestTiming]] = defaultdict(list)
    for request in requests:
        if stream_speeds([request]):
            groups[request.prompt_id].append(request)
    return groups


def _speed(requests: Sequence[RequestTiming]) -> float:
    tokens = sum(r.output_tokens or 0 for r in requests)
    return tokens / sum((r.last_ns or 0) - r.sent_ns for r in requests) * 1e9


def stream_speeds(requests: Sequence[RequestTiming]) -> list[float]:
    """Return tokens a second, send to last token, of each good request that tells."""
    return [
        r.output_tokens / (r.last_ns - r.sent_ns) * 1e9
        for r in requests
        if r.error is None and r.output_tokens and r.last_ns is not None and r.last_ns > r.sent_ns
    ]
