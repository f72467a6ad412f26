"""An early stop within a launch: passes that can change nothing are not sent. Pure.

    requests of the best setting so far --rival_of--> Rival, sent along with a trial
    requests of a trial so far, Rival --certainly_worse--> whether to go on

Trials are compared prompt by prompt: they send the same ones.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean, harmonic_mean, median, variance

from sweeper.records import RequestTiming
from sweeper.statistics.intervals import stream_speeds, student_t
from sweeper.statistics.trend import LAUNCH_NOISE

#: Objectives that follow from the speed of streams. For others nothing is stopped early.
SPEEDS = frozenset({"output_tok_s", "output_tok_s_per_gpu", "output_tok_s_per_user", "e2e_p50_ms"})
#: Those of them in which a slow prompt counts by the time that it takes; others are medians.
_TOTALS = frozenset({"output_tok_s", "output_tok_s_per_gpu"})
#: With fewer pairs nothing is stopped.
_LEAST_PAIRS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """The best setting so far, as far as a comparison needs it.

    Attributes:
        workload: The workload that decides.
        metric: The number of it that decides, one of SPEEDS.
        confidence: How sure a stop must be, one-sided.
        speeds: (prompt, pass) -> tok/s of one stream.
        slack: By how much the node's own speed has moved so far, as a difference of logarithms.
    """

    workload: str
    metric: str = "output_tok_s"
    confidence: float
    speeds: Mapping[tuple[str, int], float] = field(default_factory=dict)
    slack: float = 0.0


def rival_of(
    requests: Iterable[RequestTiming],
    workload: str,
    confidence: float,
    metric: str = "output_tok_s",
) -> Rival:
    """Return what a comparison needs of the best setting's requests."""
    return Rival(
        workload=workload,
        metric=metric,
        confidence=confidence,
        speeds=_speeds(requests, workload),
    )


def certainly_worse(requests: Sequence[RequestTiming], rival: Rival) -> bool:
    """Tell whether a trial is slower than the rival beyond chance, over the pairs so far.

    On logarithms of speeds, with mean d and variance v over n pairs, it is if

        d + t sqrt(v / n) + z sqrt(2) LAUNCH_NOISE + slack < 0

    t and z are the quantiles of Student's t and of the normal distribution at the rival's
    confidence: pairs do not show what differs from launch to launch. A mean of logarithms is not
    the number that decides: where one draft is quick on some prompts and slow on others, a steady
    setting may be behind by the one and ahead by the other. So over the same pairs that number
    must be behind as well, by more than launches and the node explain.
    """
    mine = _speeds(requests, rival.workload)
    pairs = [(speed, rival.speeds[key]) for key, speed in mine.items() if key in rival.speeds]
    logs = [math.log(speed / other) for speed, other in pairs]
    if len(logs) < _LEAST_PAIRS:
        return False
    margin = student_t(rival.confidence, len(logs) - 1) * math.sqrt(variance(logs) / len(logs))
    launches = NormalDist().inv_cdf(rival.confidence) * math.sqrt(2) * LAUNCH_NOISE
    middle = harmonic_mean if rival.metric in _TOTALS else median
    behind = math.log(middle(a for a, _ in pairs) / middle(b for _, b in pairs))
    return max(fmean(logs) + margin, behind) + launches + rival.slack < 0


def _speeds(requests: Iterable[RequestTiming], workload: str) -> dict[tuple[str, int], float]:
    """Return each prompt's speed in each pass; one sent several times counts as their mean."""
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for request in requests:
        if request.workload == workload:
            found[request.prompt_id, request.repeat] += stream_speeds([request])
    return {key: fmean(speeds) for key, speeds in found.items() if speeds}
