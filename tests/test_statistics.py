"""Formulas against numbers worked out by hand, and properties of the intervals."""

import dataclasses
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.judging.answers import answers_agree, degenerate
from sweeper.records import RequestTiming, Workload
from sweeper.statistics.measurement import (
    drift,
    paired_ratio,
    percentile,
    summarize,
    with_acceptance,
)

MS = 1_000_000
Pair = tuple[list[RequestTiming], list[RequestTiming]]
WORKLOAD = Workload(name="w", repeats=2)


def timing(
    *,
    sent_ms: float = 0,
    ttft_ms: float = 100,
    gaps_ms: tuple[float, ...] = (10,) * 9,
    **more: Any,
) -> RequestTiming:
    """Return a good request with a chunk after `ttft_ms` and one after each gap."""
    stamps = [sent_ms + ttft_ms]
    for gap in gaps_ms:
        stamps.append(stamps[-1] + gap)
    fields: dict[str, Any] = {
        "workload": "w",
        "repeat": 0,
        "prompt_id": "p",
        "prompt_kind": "chat",
        "sent_ns": int(sent_ms * MS),
        "first_ns": int(stamps[0] * MS),
        "last_ns": int(stamps[-1] * MS),
        "chunk_ns": tuple(int(s * MS) for s in stamps),
        "output_tokens": len(stamps),
        "finish": "length",
    }
    return RequestTiming(**{**fields, **more})


def test_times_are_computed_as_their_names_say() -> None:
    measured = summarize([timing()], workload=WORKLOAD, gpus=2)
    assert measured.ttft_p50_ms == pytest.approx(100)
    assert measured.tpot_p50_ms == pytest.approx(10)
    assert measured.gap_p50_ms == pytest.approx(10)
    assert measured.e2e_p50_ms == pytest.approx(190)
    assert measured.window_s == pytest.approx(0.19)
    assert measured.output_tok_s == pytest.approx(10 / 0.19)
    assert measured.output_tok_s_per_gpu == pytest.approx(5 / 0.19)
    assert measured.output_tok_s_per_user == pytest.approx(10 / 0.19)
    assert measured.achieved_concurrency == pytest.approx(1)
    assert measured.step_time_ms == pytest.approx(10)
    assert measured.accept_length is None


def test_several_tokens_a_chunk_make_tpot_smaller_than_the_gap() -> None:
    measured = summarize([timing(gaps_ms=(9,) * 33, output_tokens=100)], workload=WORKLOAD, gpus=1)
    assert measured.gap_p50_ms == pytest.approx(9)
    assert measured.tpot_p50_ms == pytest.approx(3)


@pytest.mark.parametrize("spec", [{}, {"verify_steps": 4, "accepted_histogram": (1, 1, 2)}])
def test_an_answer_in_one_piece_tells_no_time_of_its_tokens(spec: dict[str, Any]) -> None:
    one = timing(gaps_ms=(), output_tokens=10, **spec)
    measured = summarize([one], workload=WORKLOAD, gpus=1)
    assert (measured.tpot_p50_ms, measured.gap_p50_ms, measured.step_time_ms) == (None,) * 3
    assert measured.output_tok_s == pytest.approx(100)
    assert (measured.accept_length is not None) is bool(spec)
    both = summarize([one, timing(sent_ms=500)], workload=WORKLOAD, gpus=1)
    assert both.tpot_p50_ms == pytest.approx(10)
    if not spec:
        assert both.step_time_ms == pytest.approx(10)


def test_acceptance_is_exact_from_histograms() -> None:
    # The histogram and the count were read from a real server: 61 tokens, 4 draft tokens.
    request = timing(
        gaps_ms=(20,) * 40,
        output_tokens=61,
        verify_steps=40,
        accepted_histogram=(27, 7, 2, 4),
    )
    measured = summarize([request], workload=WORKLOAD, gpus=1)
    assert measured.accept_length == pytest.approx(1.575)
    assert measured.accept_source == "histogram"
    assert measured.accept_rate == pytest.approx(23 / 120)
    assert measured.accepted_by_position == pytest.approx((13 / 40, 6 / 40, 4 / 40))
    assert measured.step_time_ms == pytest.approx(20)


def test_histograms_of_unequal_length_are_pooled() -> None:
    requests = [
        timing(verify_steps=3, accepted_histogram=(3,)),
        timing(sent_ms=500, verify_steps=3, accepted_histogram=(0, 1, 2)),
    ]
    measured = summarize(requests, workload=WORKLOAD, gpus=1, drafted_tokens=18)
    assert measured.accepted_histogram == (3, 1, 2)
    assert measured.accept_length == pytest.approx(11 / 6)
    assert measured.accept_rate == pytest.approx(5 / 18)


def test_histograms_are_pooled_by_prompt_kind() -> None:
    requests = [
        timing(prompt_kind="code", verify_steps=3, accepted_histogram=(0, 1, 2)),
        timing(prompt_kind="chat", sent_ms=500, verify_steps=3, accepted_histogram=(3,)),
        timing(prompt_kind="code", sent_ms=900, verify_steps=2, accepted_histogram=(1, 1)),
    ]
    measured = summarize(requests, workload=WORKLOAD, gpus=1)
    assert measured.accepted_by_kind == {"chat": (3,), "code": (1, 2, 2)}
    assert measured.accepted_histogram == (4, 2, 2)


def test_a_draft_that_is_never_accepted_has_length_one_and_no_invented_rate() -> None:
    request = timing(verify_steps=9, accepted_histogram=(9,))
    measured = summarize([request], workload=WORKLOAD, gpus=1)
    assert measured.accept_length == 1.0
    assert measured.accept_rate is None
    assert measured.accepted_by_position == ()
    known = summarize([request], workload=WORKLOAD, gpus=1, drafted_tokens=27)
    assert known.accept_rate == 0.0


@given(st.lists(st.integers(0, 5), min_size=2, max_size=60))
def test_speed_is_accept_length_by_step_time(accepted: list[int]) -> None:
    steps = [sum(a == i for a in accepted) for i in range(6)]
    request = timing(
        gaps_ms=(25,) * len(accepted),
        output_tokens=1 + sum(accepted) + len(accepted),
        verify_steps=len(accepted),
        accepted_histogram=tuple(steps),
    )
    measured = summarize([request], workload=WORKLOAD, gpus=1)
    assert measured.accept_length is not None
    assert measured.step_time_ms is not None
    assert measured.tpot_p50_ms is not None
    assert measured.accept_length / measured.step_time_ms == pytest.approx(
        1 / measured.tpot_p50_ms
    )


def test_verify_steps_without_histogram_give_the_servers_own_length() -> None:
    measured = summarize([timing(output_tokens=30, verify_steps=10)], workload=WORKLOAD, gpus=1)
    assert (measured.accept_length, measured.accept_source) == (3.0, "counters")


def test_hidden_speculation_gives_no_step_time() -> None:
    chat = dataclasses.replace(WORKLOAD, route="chat")
    hidden = summarize([timing(output_tokens=30)], workload=chat, gpus=1)
    assert hidden.step_time_ms is None
    told = with_acceptance(hidden, 3.0, "counters")
    assert told.step_time_ms == pytest.approx(3.0 * (hidden.tpot_p50_ms or 0))
    assert with_acceptance(told, 9.0, "log") == told
    plain = summarize([timing()], workload=chat, gpus=1)
    assert plain.step_time_ms == pytest.approx(10)


def test_the_window_runs_from_first_send_to_last_token_over_repeats() -> None:
    requests = [timing(sent_ms=s, repeat=r) for r in (0, 1) for s in (1000, 1190)]
    measured = summarize(requests, workload=WORKLOAD, gpus=1)
    assert measured.window_s == pytest.approx(0.76)
    assert measured.repeats_tok_s == pytest.approx((20 / 0.38, 20 / 0.38))


def test_failed_requests_are_counted_and_not_credited() -> None:
    broken = timing(sent_ms=200, output_tokens=4, error="reset")
    measured = summarize([timing(), broken], workload=WORKLOAD, gpus=1)
    assert (measured.requests, measured.failed_requests) == (1, 1)
    assert measured.output_tokens == 10


def test_one_uncounted_request_makes_the_sum_missing() -> None:
    measured = summarize(
        [timing(), timing(sent_ms=200, output_tokens=None)], workload=WORKLOAD, gpus=1
    )
    assert measured.output_tokens is None
    assert measured.output_tok_s is None
    assert measured.ttft_p50_ms is not None


@pytest.mark.parametrize("requests", [[], [timing(error="x")]])
def test_of_nothing_everything_is_missing(requests: list[RequestTiming]) -> None:
    measured = summarize(requests, workload=WORKLOAD, gpus=1)
    assert measured.requests == 0
    for field in dataclasses.fields(measured):
        if field.name == "repeats_tok_s":
            assert measured.repeats_tok_s == ()
        elif field.name.endswith(("_ms", "_s", "_low", "_high", "_per_gpu", "_per_user")):
            assert getattr(measured, field.name) is None


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [([1, 2, 3, 4], 50, 2.5), ([1, 2], 90, 1.9), ([7], 99, 7), ([], 1, None)],
)
def test_percentiles_interpolate(values: list[float], q: float, expected: float | None) -> None:
    assert percentile(values, q) == pytest.approx(expected)


@given(st.lists(st.floats(1, 1000), min_size=2, max_size=12), st.integers(0, 9))
def test_the_interval_holds_the_value_and_repeats_itself(ttfts: list[float], seed: int) -> None:
    workload = dataclasses.replace(WORKLOAD, repeats=len(ttfts), seed=seed)
    requests = [timing(ttft_ms=t, repeat=i) for i, t in enumerate(ttfts)]
    one = summarize(requests, workload=workload, gpus=1)
    assert one == summarize(requests, workload=workload, gpus=1)
    assert one.output_tok_s is not None
    assert one.output_tok_s_low is not None
    assert one.output_tok_s_high is not None
    assert one.output_tok_s_low <= one.output_tok_s <= one.output_tok_s_high


def pair(ratios: list[float], noise: float, seed: int = 1) -> Pair:
    """Return two launches whose prompts differ much and whose ratio is `ratios`."""
    chance = random.Random(seed)
    both: Pair = ([], [])
    for index, ratio in enumerate(ratios):
        base = 10.0 * (1 + index)
        for repeat in range(3):
            for side, factor in zip(both, (1 / ratio, 1.0), strict=True):
                gap = base * factor * math.exp(chance.gauss(0, noise))
                request = timing(
                    ttft_ms=gap, gaps_ms=(gap,) * 9, prompt_id=str(index), repeat=repeat
                )
                side.append(request)
    return both


def test_a_paired_ratio_sees_through_unequal_prompts() -> None:
    interval = paired_ratio(*pair([1.05] * 5, noise=0.005), seed=0)
    assert interval is not None
    assert interval.low < 1.05 < interval.high
    assert interval.excludes(1.0)
    assert interval.high - interval.low < 0.05


def test_equal_launches_are_not_told_apart() -> None:
    wrong = sum(
        (interval := paired_ratio(*pair([1.0] * 5, noise=0.02, seed=s), seed=0)) is not None
        and interval.excludes(1.0)
        for s in range(100)
    )
    assert wrong <= 10  # 5 expected


def test_a_ratio_needs_two_pairs() -> None:
    assert paired_ratio([timing()], [timing(prompt_id="q")], seed=0) is None
    assert paired_ratio([timing()], [timing()], seed=0) is None
    assert paired_ratio([timing()] * 2, [timing()] * 2, seed=0) is not None


def test_a_steady_decline_is_drift_and_can_be_taken_out() -> None:
    hours = [0, 1, 2, 3, 4, 5]
    values = [100 - 2 * h for h in hours]
    found = drift(values, [3600.0 * h for h in hours])
    assert found is not None
    assert found.p_value < 0.05
    corrected = [v / found.factor(3600.0 * h) for v, h in zip(values, hours, strict=True)]
    assert corrected == pytest.approx([found.level] * 6)


def test_noise_is_no_drift() -> None:
    found = drift([100, 102, 99, 101, 100.5], [0, 60, 120, 180, 240])
    assert found is not None
    assert found.p_value > 0.3
    assert drift([1, 2], [0, 1]) is None
    flat = drift([5, 5, 5], [0, 1, 2])
    assert flat is not None
    assert (flat.share_per_hour, flat.p_value) == (0, 1)


PROSE = (
    "The tide came in slowly that evening, and with it came the boats, one after another, "
    "each with its lamp lit and its nets heaped wet in the stern. Nobody on the quay spoke. "
    "They counted, as they always had, and when the ninth lamp rounded the mole somebody laughed. "
    "Prices would be poor tomorrow; with nine boats full, no buyer needs to hurry. But tonight "
    "there would be soup in every house, and the old men would tell the story of the winter when "
    "only two came back, and the young ones would pretend that they had not heard it before."
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("!" * 500, "period 1"),
        ("\ufffd" * 20 + "ab", "undecodable"),
        (PROSE[:200] + " and so on" * 60, "period 10"),
        ((PROSE[:60] + "\n") * 12, "period 61"),
    ],
)
def test_broken_answers_are_named(text: str, words: str) -> None:
    reason = degenerate(text)
    assert reason is not None
    assert words in reason


@pytest.mark.parametrize(
    "text",
    [
        PROSE,
        "42",
        "no, no, no",
        "\n".join(f"| {i} | {i * i} | {i**3} |" for i in range(60)),
        "".join(
            f"    def field_{n}(self) -> int:\n        return self._{n}\n\n" for n in "abcdefgh"
        ),
    ],
)
def test_sound_answers_are_left_alone(text: str) -> None:
    assert degenerate(text) is None


def test_answers_are_compared_by_prompt_and_repeat() -> None:
    ours = [timing(prompt_id=p, text=t) for p, t in (("a", "same"), ("b", "left"), ("c", "x"))]
    theirs = [timing(prompt_id=p, text=t) for p, t in (("a", "same"), ("b", "lets"))]
    agreement = answers_agree(ours, theirs)
    assert agreement is not None
    assert (agreement.pairs, agreement.equal_share) == (2, 0.5)
    assert agreement.first_difference == ("b", 2)
    assert agreement.common_share == pytest.approx(0.75)
    assert answers_agree(ours, []) is None
