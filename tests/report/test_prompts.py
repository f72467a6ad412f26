"""Prompt by prompt, on requests whose figures can be worked out by hand."""

from collections.abc import Sequence

import pytest

from sweeper.judging.standings import Standing, standings
from sweeper.records import RequestTiming
from sweeper.report.prompts import (
    Acceptance,
    PromptInfo,
    PromptSpeeds,
    gain_info,
    position_info,
    prompt_info,
)
from sweeper.report.run import no_requests
from sweeper.statistics.measurement import Interval
from tests.report import build

STUDY = build.small_study()


def sent(
    prompt: str,
    kind: str,
    seconds: float,
    tokens: int = 100,
    histogram: tuple[int, ...] | None = None,
    error: str | None = None,
    workload: str = "single",
) -> RequestTiming:
    return RequestTiming(
        workload=workload,
        repeat=0,
        prompt_id=prompt,
        prompt_kind=kind,
        sent_ns=0,
        first_ns=1,
        last_ns=int(seconds * 1e9),
        output_tokens=tokens,
        accepted_histogram=histogram,
        error=error,
    )


def two(
    setting: Sequence[RequestTiming], baseline: Sequence[RequestTiming]
) -> tuple[Standing, Standing]:
    records = [
        build.record(STUDY, 0, tok_s=90.0, requests=baseline),
        build.record(STUDY, 1, build.point(2), tok_s=95.0, requests=setting),
    ]
    base, best = standings(records, STUDY.objectives)
    return best, base


def test_speed_by_prompt_is_tokens_by_the_time_of_the_stream() -> None:
    best, base = two(
        [sent("a", "code", 1.0), sent("a", "code", 2.0), sent("b", "chat", 1.0, error="cut")],
        [sent("a", "code", 4.0), sent("b", "chat", 5.0), sent("a", "code", 9, workload="other")],
    )
    assert prompt_info([best, base], "single", no_requests) == PromptInfo(
        workload="single",
        prompts=(("a", "code"), ("b", "chat")),
        settings=(
            PromptSpeeds(
                setting="draft=ours steps=2 topk=1 draft_tokens=3 nccl=default",
                is_baseline=False,
                speeds=((100.0, 50.0), ()),
            ),
            PromptSpeeds(setting="baseline", is_baseline=True, speeds=((25.0,), (20.0,))),
        ),
        simulated=True,
    )


def test_requests_are_read_where_the_records_carry_none() -> None:
    best, base = two([], [])
    stored = {0: (sent("a", "code", 4.0),), 1: (sent("a", "code", 2.0),)}
    info = prompt_info([best, base], "single", lambda number: stored[number])
    assert [row.speeds for row in info.settings] == [((50.0,),), ((25.0,),)]


def test_the_gain_is_prompt_by_prompt_over_those_that_both_have() -> None:
    best, base = two(
        [sent("a", "code", 1.0), sent("b", "chat", 2.0), sent("only here", "chat", 1.0)],
        [sent("b", "chat", 2.5), sent("a", "code", 2.0)],
    )
    overall = Interval(low=1.2, mid=1.6, high=2.1)
    info = gain_info(best, base, "single", no_requests, overall)
    assert info.prompts == (("a", "code"), ("b", "chat"))
    assert info.ratios == pytest.approx((2.0, 1.25))
    assert info.overall == overall


def test_acceptance_by_position_counts_steps_that_went_at_least_so_far() -> None:
    best, base = two(
        [
            sent("a", "code", 1.0, histogram=(2, 3, 5)),
            sent("b", "chat", 1.0, histogram=(6, 4)),
            sent("c", "chat", 1.0, histogram=(0, 0, 9), error="cut"),
        ],
        [sent("a", "code", 1.0)],
    )
    info = position_info([best, base], "single", no_requests)
    name = "draft=ours steps=2 topk=1 draft_tokens=3 nccl=default"
    assert info.settings == (Acceptance(name=name, steps=20, rates=(0.6, 0.25)),)
    assert info.kind_setting == name
    assert info.kinds == (
        Acceptance(name="code", steps=10, rates=(0.8, 0.5)),
        Acceptance(name="chat", steps=10, rates=(0.4,)),
    )


def test_without_requests_there_is_nothing_to_show() -> None:
    best, base = two([], [])
    assert prompt_info([best, base], "single", no_requests).settings == ()
    assert gain_info(best, base, "single", no_requests).ratios == ()
    assert position_info([best, base], "single", no_requests).settings == ()
