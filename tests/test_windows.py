"""Which tokens and which time count for a throughput."""

import dataclasses
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.records import RequestTiming, Workload
from sweeper.statistics.measurement import summarize
from sweeper.statistics.windows import steady_ns, tokens_between, windows

MS = 1_000_000
LASTING = Workload(name="busy", concurrency=4, repeats=None, duration_s=1.0)
PASSES = Workload(name="single", repeats=2)


def timing(
    sent_ms: float,
    *,
    ttft_ms: float = 50.0,
    step_ms: float = 10.0,
    tokens: int = 20,
    tokens_a_piece: int = 1,
    repeat: int = 0,
    error: str | None = None,
) -> RequestTiming:
    pieces = 1 + -(-(tokens - 1) // tokens_a_piece)
    stamps = tuple(int((sent_ms + ttft_ms + i * step_ms) * MS) for i in range(pieces))
    return RequestTiming(
        workload="busy",
        repeat=repeat,
        prompt_id="p",
        prompt_kind="chat",
        sent_ns=int(sent_ms * MS),
        first_ns=stamps[0],
        last_ns=stamps[-1],
        chunk_ns=stamps,
        output_tokens=tokens,
        error=error,
    )


def closed_loop(
    streams: int, duration_ms: float, tokens: int, chance: random.Random, ramp_ms: float = 0.0
) -> list[RequestTiming]:
    """Return what streams bring that send until the deadline; requests take unlike times."""
    found = []
    for stream in range(streams):
        now = ramp_ms * stream / streams
        while now < duration_ms:
            one = timing(now, ttft_ms=5.0, step_ms=chance.uniform(8, 12), tokens=tokens)
            found.append(one)
            now = (one.last_ns or 0) / MS
    return found


def test_the_drain_after_the_deadline_does_not_count() -> None:
    # Four streams of 100 tokens a second each; the last to begin ends 1.9 s after the deadline.
    requests = closed_loop(4, 1000.0, 191, random.Random(1))
    assert max(r.last_ns or 0 for r in requests) > 1.5e9
    (window,) = windows(requests, LASTING)
    assert window.seconds == pytest.approx(1.0)
    assert window.tokens is not None
    assert window.tokens / window.seconds == pytest.approx(4 * 100, rel=0.06)
    measured = summarize(requests, workload=LASTING, gpus=0)
    assert measured.window_s == pytest.approx(1.0)
    assert measured.achieved_concurrency == pytest.approx(4.0)
    assert measured.output_tokens == 191 * len(requests)


@pytest.mark.parametrize("ramp_ms", [0.0, 2000.0])
@pytest.mark.parametrize("tokens", [50, 400, 1500])
def test_a_duration_gives_the_steady_speed_whatever_the_length_of_answers(
    tokens: int, ramp_ms: float
) -> None:
    workload = dataclasses.replace(LASTING, duration_s=20.0, ramp_s=ramp_ms / 1000)
    speeds = []
    for seed in range(20):
        requests = closed_loop(8, 20_000.0, tokens, random.Random(seed), ramp_ms)
        measured = summarize(requests, workload=workload, gpus=0)
        assert measured.achieved_concurrency == pytest.approx(8.0)
        speeds.append(measured.output_tok_s or 0)
    # Mean of 1 / U(8, 12) ms would favour the quick ones; streams take turns by requests.
    expected = 8 * tokens / (0.005 + (tokens - 1) * 0.010)
    assert sum(speeds) / len(speeds) == pytest.approx(expected, rel=0.015)


def test_the_ramp_does_not_count() -> None:
    workload = dataclasses.replace(LASTING, ramp_s=0.4)
    requests = closed_loop(4, 1000.0, 20, random.Random(2), ramp_ms=400.0)
    (window,) = windows(requests, workload)
    assert window.seconds == pytest.approx(0.6)
    assert window.flight_s / window.seconds == pytest.approx(4.0)


def test_an_open_loop_stands_at_its_height_once_requests_end() -> None:
    # 100 a second, each of 200 ms: 20 in flight, but none at the beginning.
    workload = dataclasses.replace(LASTING, concurrency=None, request_rate=100.0)
    requests = [timing(i * 10.0, ttft_ms=10.0, tokens=20) for i in range(100)]
    assert steady_ns(requests, workload) == (200 * MS, 1000 * MS)
    measured = summarize(requests, workload=workload, gpus=0)
    assert measured.achieved_concurrency == pytest.approx(20, rel=0.02)
    assert measured.output_tok_s == pytest.approx(100 * 20, rel=0.02)


def test_the_time_after_a_traces_last_request_does_not_count() -> None:
    """100 a second for a second; nine seconds of nothing would make a tenth of it."""
    workload = dataclasses.replace(LASTING, concurrency=None, arrivals="t.jsonl", duration_s=10.0)
    requests = [timing(i * 10.0, ttft_ms=10.0, tokens=20) for i in range(100)]
    assert steady_ns(requests, workload) == (200 * MS, 990 * MS)
    measured = summarize(requests, workload=workload, gpus=0)
    assert measured.output_tok_s == pytest.approx(100 * 20, rel=0.02)
    assert measured.achieved_concurrency == pytest.approx(20, rel=0.02)
    once = summarize(requests[:1], workload=workload, gpus=0)
    assert once.output_tok_s is None


def test_an_open_loop_in_which_nothing_ends_in_time_begins_with_the_ramps_end() -> None:
    workload = dataclasses.replace(LASTING, concurrency=None, request_rate=10.0, ramp_s=0.2)
    requests = [timing(i * 100.0, tokens=500) for i in range(10)]
    assert steady_ns(requests, workload) == (200 * MS, 1000 * MS)


@pytest.mark.parametrize("tokens_a_piece", [1, 3])
def test_a_request_that_straddles_an_end_gives_the_part_inside(tokens_a_piece: int) -> None:
    one = timing(0.0, tokens=31, tokens_a_piece=tokens_a_piece)
    middle = one.chunk_ns[len(one.chunk_ns) // 2]
    before, after = tokens_between(one, 0, middle), tokens_between(one, middle, 10**12)
    assert before is not None
    assert after is not None
    assert before + after == pytest.approx(31)
    assert before == pytest.approx(1 + (len(one.chunk_ns) // 2 - 1) * tokens_a_piece)


@given(
    st.lists(st.integers(0, 1000), max_size=30),
    st.integers(0, 100),
    st.lists(st.integers(-10, 1100), max_size=5),
)
def test_parts_add_up_to_the_servers_count(
    stamps: list[int], tokens: int, cuts: list[int]
) -> None:
    one = dataclasses.replace(
        timing(0.0), chunk_ns=tuple(sorted(stamps)), last_ns=max(stamps, default=None)
    )
    one = dataclasses.replace(one, output_tokens=tokens)
    ends = [-100, *sorted(cuts), 2000]
    parts = [tokens_between(one, a, b) or 0.0 for a, b in itertools.pairwise(ends)]
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(tokens if stamps else 0)


def test_uncounted_requests_leave_the_speed_unknown_and_the_window_known() -> None:
    silent = dataclasses.replace(timing(100.0), output_tokens=None)
    measured = summarize([timing(0.0), silent], workload=LASTING, gpus=0)
    assert measured.output_tok_s is None
    assert measured.window_s == pytest.approx(1.0)


def test_a_duration_in_which_no_token_came_has_no_speed() -> None:
    measured = summarize([timing(0.0, ttft_ms=3000.0)], workload=LASTING, gpus=0)
    assert measured.output_tok_s is None
    assert measured.window_s is None
    assert measured.ttft_p50_ms == pytest.approx(3000.0)


def test_failed_requests_load_the_server_and_bring_no_tokens() -> None:
    requests = [timing(0.0, tokens=95), timing(0.0, tokens=95, error="reset")]
    (window,) = windows(requests, LASTING)
    assert window.tokens == pytest.approx(95)
    assert window.flight_s == pytest.approx(1.98)


def test_a_pass_runs_from_first_send_to_last_good_token() -> None:
    requests = [
        timing(1000.0),
        timing(1190.0, error="reset", ttft_ms=5000.0),
        timing(3000.0, repeat=1),
    ]
    one, two = windows(requests, PASSES)
    assert [one.seconds, two.seconds] == pytest.approx([0.24, 0.24])
    assert (one.tokens, two.tokens) == (20.0, 20.0)


def test_a_failed_straggler_counts_as_in_flight_until_the_pass_ends() -> None:
    workload = dataclasses.replace(PASSES, name="busy", concurrency=5, repeats=1)
    good = [timing(0.0, tokens=100) for _ in range(4)]
    straggler = timing(0.0, tokens=100, step_ms=100.0, error="still unfinished")
    measured = summarize([*good, straggler], workload=workload, gpus=0)
    assert measured.window_s == pytest.approx(1.04)
    assert measured.achieved_concurrency == pytest.approx(5.0)
