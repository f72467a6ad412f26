"""The quality guard: a setting that writes rubbish cannot win, however fast it writes. Pure.

    finished trial + the baseline's answers to the same prompts --guard--> the same trial, with
    shares of equal and of degenerate answers; INFEASIBLE output_degenerate where it is broken

Speculation leaves greedy answers as they are but for the order of sums, which may turn an answer
at a near tie; so answers that differ are counted, and only answers that are broken condemn.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from sweeper.errors import Failure, FailureClass, Stage
from sweeper.judging.answers import answers_agree, by_prompt, degenerate
from sweeper.judging.standings import DEGENERATE_MARGIN
from sweeper.records import Measurement, RequestTiming, TrialRecord, TrialState, Workload

#: A mean of so few tokens a verify step means that no draft is ever accepted (cases A15), and
#: verify steps below which an accept length says nothing.
_INEFFECTIVE_LENGTH, _INEFFECTIVE_STEPS = 1.05, 50
#: Chance of so uneven a split of equally good answers, above which a setting is not condemned.
_P_VALUE = 0.05


def ineffective(measurements: Iterable[Measurement]) -> Failure | None:
    """Return the failure of speculation that never accepts a draft token, if it does not.

    SGLang's histograms end at the most that was accepted: here they may have one number only.
    """
    for measurement in measurements:
        length, histogram = measurement.accept_length, measurement.accepted_histogram
        if length is None or length > _INEFFECTIVE_LENGTH:
            continue
        steps = sum(histogram) if histogram else (measurement.output_tokens or 0) / length
        if steps >= _INEFFECTIVE_STEPS:
            return Failure(
                kind=FailureClass.SPEC_INEFFECTIVE,
                stage=Stage.SERVING,
                line=f"accept length {length:.2f} over {steps:.0f} verify steps",
            )
    return None


def guard(
    record: TrialRecord, baseline: Sequence[RequestTiming], workloads: Iterable[Workload]
) -> TrialRecord:
    """Return `record` with what its answers show, INFEASIBLE if they are broken.

    Args:
        record: A finished trial with its requests.
        baseline: The baseline's requests under the same salt; empty if there are none yet, or
            if the record is the baseline's own.
        workloads: The study's; only greedy ones have answers that can be equal.
    """
    greedy = {w.name for w in workloads if w.temperature == 0}
    looked = tuple(_looked(m, record.requests, baseline, greedy) for m in record.measurements)
    record = replace(record, measurements=looked)
    if record.state not in (TrialState.COMPLETE, TrialState.PRUNED) or not baseline:
        return record
    line = _broken(record.requests, baseline)
    if line is None:
        return record
    failure = Failure(kind=FailureClass.OUTPUT_DEGENERATE, stage=Stage.SERVING, line=line)
    return replace(record, state=TrialState.INFEASIBLE, failure=failure)


def _looked(
    measurement: Measurement,
    requests: Sequence[RequestTiming],
    baseline: Sequence[RequestTiming],
    greedy: set[str],
) -> Measurement:
    mine, theirs = _of(requests, measurement.workload), _of(baseline, measurement.workload)
    agreement = answers_agree(mine, theirs) if measurement.workload in greedy else None
    return replace(
        measurement,
        answers_equal_share=agreement.equal_share if agreement else None,
        degenerate_share=sum(_why(r.text) is not None for r in mine) / len(mine) if mine else None,
    )


def _broken(requests: Sequence[RequestTiming], baseline: Sequence[RequestTiming]) -> str | None:
    """Return how answers are broken whose counterparts of the baseline are sound; None if not.

    Of prompts on which the two differ in this, a sound setting would be the broken one as often
    as the baseline (sign test, one-sided). It must also be broken on a fifth more of all prompts.
    """
    theirs = by_prompt(baseline)
    pairs = [
        (mine, _why(mine.text), _why(theirs[key].text))
        for key, mine in by_prompt(requests).items()
        if key in theirs and mine.error is None and theirs[key].error is None
    ]
    worse = [(r, why) for r, why, base in pairs if why is not None and base is None]
    better = sum(why is None and base is not None for _, why, base in pairs)
    if len(worse) - better <= DEGENERATE_MARGIN * len(pairs):
        return None
    differ = len(worse) + better
    chance = sum(math.comb(differ, k) for k in range(len(worse), differ + 1)) / 2**differ
    # Fewer than five prompts can never be that unlikely; then all of them must be broken.
    if chance >= _P_VALUE and len(worse) < len(pairs):
        return None
    first, why = worse[0]
    return (
        f"{len(worse)} of {len(pairs)} answers are broken where the baseline's are not; "
        f"prompt {first.prompt_id}: {why}"
    )


def _of(requests: Sequence[RequestTiming], workload: str) -> list[RequestTiming]:
    return [r for r in requests if r.workload == workload and r.error is None]


@lru_cache(maxsize=4096)
def _why(text: str) -> str | None:
    return degenerate(text)
