"""From the request timings of one workload to its measurement. Pure.

    requests --summarize--> Measurement
    requests of two launches --paired_ratio--> Interval of their speed ratio   intervals.py
    baselines over the night --drift--> Drift                                  intervals.py

All stamps are engine time in nanoseconds. What cannot be computed is None. Each name is defined
once more for readers in `docs/numbers.md`.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from statistics import median

import numpy as np

from sweeper.records import Measurement, RequestTiming, Workload
from sweeper.statistics.intervals import (
    LEVEL,
    Drift,
    Interval,
    drift,
    expanded_quantiles,
    paired_ratio,
    resamples,
    stream_speeds,
)
from sweeper.statistics.windows import windows

__all__ = [
    "LEVEL",
    "Drift",
    "Interval",
    "drift",
    "paired_ratio",
    "percentile",
    "summarize",
    "with_acceptance",
]


def summarize(
    requests: Sequence[RequestTiming],
    *,
    workload: Workload,
    gpus: int,
    drafted_tokens: int | None = None,
    client_cpu_share: float | None = None,
) -> Measurement:
    """Return what the requests of one workload on one launch show.

    A request is good if nothing broke it; the others are counted and otherwise left out. With
    n = output_tokens, s = send, f = first and l = last piece with content, of good requests:

        TTFT = f - s                        GenAI-Perf, sglang.bench_serving
        TPOT = (l - f) / (n - 1)            sglang.bench_serving; needs n > 1 and l > f
        gap  = time between two pieces      they hold one token or several
        e2e  = l - s
        window = max l - min s              of each repeat; with `duration_s` the steady part,
                                            ramp to deadline (`windows.py`)
        output_tok_s = median over repeats of (sum of n / window), n within the window
        output_tok_s_per_user = median over requests of n / e2e
        achieved_concurrency = sum of time in flight within windows / sum of windows

    With V verify steps and h[i] of them accepting i draft tokens, summed over requests:

        accept_length = (V + sum i h[i]) / V             V = sum h; source "histogram"
                      = sum n / V without histograms     as SGLang states it; source "counters"
        accept_rate   = sum i h[i] / drafted_tokens, or / (V (len(h) - 1)) where not given
        accepted_by_position[j] = share of steps that accepted more than j
        step_time_ms  = sum (l - f) / V

    The first token comes from prefill, before the first step, so speed while decoding =
    accept_length / step_time_ms, but for tokens cut off in each last step. Without verify steps a
    step yields one token and step_time_ms = sum (l - f) / sum (n - 1); on the OpenAI routes,
    which may hide speculation, only if pieces show that.

    Percentiles interpolate linearly (Hyndman and Fan 1996, type 7). The interval resamples the
    repeats where there are three or more, each holding the same prompts, else the requests.

    Args:
        requests: All requests of the workload, failed ones too.
        workload: What was sent.
        gpus: GPUs of the server; 0 for none.
        drafted_tokens: Draft tokens proposed over all good requests, where the server says. The
            histogram only reaches as far as the longest acceptance seen, so this is the better
            divisor.
        client_cpu_share: CPU time of the client by window.
    """
    good = [r for r in requests if r.error is None]
    found = windows(requests, workload)
    window_s = sum(w.seconds for w in found)
    speeds = [w.tokens / w.seconds for w in found if w.tokens is not None]
    if len(speeds) < len(found):  # a repeat without counts would make the others stand for it
        speeds = []
    tok_s = median(speeds) if speeds else None
    interval = _speed_interval(speeds, good, workload.seed)
    ttft = [(r.first_ns - r.sent_ns) / 1e6 for r in good if r.first_ns is not None]
    e2e = [(r.last_ns - r.sent_ns) / 1e6 for r in good if r.last_ns is not None]
    tpot = [
        _decode_ns(r) / (r.output_tokens - 1) / 1e6
        for r in good
        if _decode_ns(r) > 0 and r.output_tokens and r.output_tokens > 1
    ]
    gaps = [(b - a) / 1e6 for r in good for a, b in pairwise(r.chunk_ns)]
    measurement = Measurement(
        workload=workload.name,
        requests=len(good),
        failed_requests=len(requests) - len(good),
        concurrency=workload.concurrency,
        achieved_concurrency=sum(w.flight_s for w in found) / window_s if window_s else None,
        window_s=window_s or None,
        prompt_tokens=_total([r.prompt_tokens for r in good]),
        cached_tokens=_total([r.cached_tokens for r in good]),
        output_tokens=_total([r.output_tokens for r in good]),
        output_tok_s=tok_s,
        output_tok_s_low=interval.low if interval else None,
        output_tok_s_high=interval.high if interval else None,
        output_tok_s_per_gpu=tok_s / gpus if tok_s is not None and gpus else None,
        output_tok_s_per_user=median(per_user) if (per_user := stream_speeds(good)) else None,
        repeats_tok_s=tuple(speeds),
        ttft_p50_ms=percentile(ttft, 50),
        ttft_p90_ms=percentile(ttft, 90),
        ttft_p99_ms=percentile(ttft, 99),
        tpot_p50_ms=percentile(tpot, 50),
        tpot_p90_ms=percentile(tpot, 90),
        tpot_p99_ms=percentile(tpot, 99),
        gap_p50_ms=percentile(gaps, 50),
        gap_p99_ms=percentile(gaps, 99),
        e2e_p50_ms=percentile(e2e, 50),
        e2e_p99_ms=percentile(e2e, 99),
        client_cpu_share=client_cpu_share,
    )
    return _with_steps(measurement, good, workload.route, drafted_tokens)


def with_acceptance(measurement: Measurement, length: float, source: str) -> Measurement:
    """Return `measurement` with an accept length from elsewhere, where the requests gave none.

    step_time_ms follows from it as accept_length * tpot_p50_ms.
    """
    if measurement.accept_length is not None:
        return measurement
    tpot = measurement.tpot_p50_ms
    return replace(
        measurement,
        accept_length=length,
        accept_source=source,
        step_time_ms=None if tpot is None else length * tpot,
    )


def percentile(values: Sequence[float], q: float) -> float | None:
    """Return the q-th percentile, q in 0..100, linearly interpolated; None of nothing."""
    return float(np.percentile(values, q)) if values else None


def _with_steps(
    measurement: Measurement,
    good: Sequence[RequestTiming],
    route: str,
    drafted_tokens: int | None,
) -> Measurement:
    """Return `measurement` with the fields that come from verify steps."""
    timed = [r for r in good if r.first_ns is not None and (r.output_tokens or 0) > 1]
    if not timed:
        return measurement
    # An answer that came in one piece tells its tokens and steps, but not their time.
    lasting = [r for r in timed if _decode_ns(r) > 0]
    decode_ns = sum(_decode_ns(r) for r in lasting)
    steps = _total([r.verify_steps for r in timed])
    if not steps:
        after_first = sum((r.output_tokens or 0) - 1 for r in lasting)
        pieces = sum(len(r.chunk_ns) - 1 for r in lasting)
        told_none = all(r.verify_steps is None for r in timed)
        if lasting and told_none and (route == "generate" or pieces >= 0.9 * after_first):
            return replace(measurement, step_time_ms=decode_ns / after_first / 1e6)
        return measurement
    if lasting_steps := sum(r.verify_steps or 0 for r in lasting):
        measurement = replace(measurement, step_time_ms=decode_ns / lasting_steps / 1e6)
    histograms = [r.accepted_histogram for r in timed if r.accepted_histogram]
    if len(histograms) < len(timed):
        tokens = sum(r.output_tokens or 0 for r in timed)
        return replace(measurement, accept_length=tokens / steps, accept_source="counters")
    pooled = _pooled(histograms)
    length = len(pooled)
    verified, accepted = sum(pooled), sum(i * count for i, count in enumerate(pooled))
    if not verified:
        return measurement
    drafted = drafted_tokens or verified * (length - 1)
    return replace(
        measurement,
        accept_length=(verified + accepted) / verified,
        accept_source="histogram",
        accept_rate=accepted / drafted if drafted else None,
        accepted_histogram=pooled,
        accepted_by_position=tuple(sum(pooled[j + 1 :]) / verified for j in range(length - 1)),
        accepted_by_kind={
            kind: _pooled([r.accepted_histogram or () for r in timed if r.prompt_kind == kind])
            for kind in sorted({r.prompt_kind for r in timed})
        },
    )


def _pooled(histograms: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the sum of histograms, as long as the longest."""
    return tuple(sum(column) for column in zip_longest(*histograms, fillvalue=0))


def _speed_interval(
    speeds: Sequence[float], good: Sequence[RequestTiming], seed: int
) -> Interval | None:
    rng = np.random.default_rng(seed)
    if len(speeds) >= 3:
        values = np.array(speeds)
        draws = [np.median(values[index], axis=1) for index in resamples(len(values), rng)]
        size, mid = len(values), float(np.median(values))
    else:
        counted = [r for r in good if r.output_tokens is not None and r.last_ns is not None]
        if not speeds or len(counted) < 2:
            return None
        tokens = np.array([r.output_tokens for r in counted], dtype=np.float64)
        time_ns = np.array([(r.last_ns or 0) - r.sent_ns for r in counted], dtype=np.float64)
        size, mid = len(counted), median(speeds)
        # tokens / window = (tokens / time in flight) * concurrency, and the latter is fixed.
        scale = mid * time_ns.sum() / tokens.sum() if tokens.sum() else 0.0
        draws = [
            scale * tokens[index].sum(axis=1) / time_ns[index].sum(axis=1)
            for index in resamples(size, rng)
        ]
    low, high = expanded_quantiles(np.concatenate(draws), size)
    return Interval(low=min(float(low), mid), mid=mid, high=max(float(high), mid))


def _total(values: Sequence[int | None]) -> int | None:
    """Return the sum; None of nothing, and None if one is missing."""
    known = [v for v in values if v is not None]
    return sum(known) if known and len(known) == len(values) else None


def _decode_ns(request: RequestTiming) -> int:
    return (request.last_ns or 0) - (request.first_ns or 0)
