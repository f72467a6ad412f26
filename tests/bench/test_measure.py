"""The whole instrument against real servers with known timing and known faults."""

import dataclasses
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

from sweeper.bench.measure import Progress, measure
from sweeper.bench.process import ClientProcess
from sweeper.clock import Clock
from sweeper.errors import BenchFailed, FailureClass, UserError
from sweeper.records import Limits, RequestTiming
from tests.bench import servers
from tests.bench.servers import SHORT, PlainServer, run, serving

ROUTES = ["generate", "completions", "chat"]


def decode_ms(request: RequestTiming) -> float:
    """Return the time from first to last piece."""
    return ((request.last_ns or 0) - (request.first_ns or 0)) / 1e6


@pytest.mark.parametrize("route", ROUTES)
def test_known_timing_is_recovered(client: ClientProcess, route: str) -> None:
    workload = dataclasses.replace(SHORT, route=route, repeats=3)
    measured, requests = run(client, PlainServer(), workload)
    assert (measured.requests, measured.failed_requests) == (15, 0)
    assert {r.output_tokens for r in requests} == {9}
    assert all(len(r.chunk_ns) == 9 for r in requests)
    assert measured.output_tokens == 135
    assert len(measured.repeats_tok_s) == 3
    # A loaded machine may be late, but nothing can come before its time; `test_calibration.py`
    # looks closer.
    assert measured.ttft_p50_ms is not None
    assert 55 < measured.ttft_p50_ms < 3000
    assert measured.tpot_p50_ms is not None
    assert measured.tpot_p50_ms < 1000
    assert all((r.last_ns or 0) - r.sent_ns > 0.21e9 for r in requests)
    assert measured.step_time_ms == pytest.approx(mean(map(decode_ms, requests)) / 8)
    assert measured.output_tok_s_per_gpu == pytest.approx((measured.output_tok_s or 0) / 2)
    assert requests[0].text.split() == ["w"] * 9
    assert requests[0].finish == "length"


@pytest.mark.parametrize("route", ROUTES)
def test_several_tokens_a_chunk_are_counted_by_the_server(
    client: ClientProcess, route: str
) -> None:
    server = PlainServer()
    server.per_chunk = 4
    measured, requests = run(client, server, dataclasses.replace(SHORT, route=route))
    assert {len(r.chunk_ns) for r in requests} == {3}
    assert {r.output_tokens for r in requests} == {9}
    assert measured.tpot_p50_ms == pytest.approx(median(map(decode_ms, requests)) / 8)
    if route == "generate":
        assert measured.accept_length == 4.0
        assert measured.accept_source == "histogram"
        assert measured.accept_rate == pytest.approx(3 / 4)
        assert measured.accepted_by_position == (1.0, 1.0, 1.0)
        assert measured.step_time_ms == pytest.approx(mean(map(decode_ms, requests)) / 2)
    else:
        assert measured.accept_length is None
        assert measured.step_time_ms is None


def test_without_usage_tokens_are_missing_and_not_zero(client: ClientProcess) -> None:
    workload = dataclasses.replace(SHORT, route="chat")
    measured, requests = run(client, servers.ServerWithoutUsage(), workload)
    assert {r.output_tokens for r in requests} == {None}
    assert all("no usage" in (r.note or "") for r in requests)
    assert (measured.output_tok_s, measured.output_tokens, measured.tpot_p50_ms) == (None,) * 3
    assert measured.requests == 5
    assert measured.ttft_p50_ms is not None


FAULTS = [
    (servers.ServerThatResets, FailureClass.TRUNCATED_STREAM, "connection broke in the middle"),
    (servers.ServerThatEndsEarly, FailureClass.TRUNCATED_STREAM, "without a finish"),
    (servers.ServerThatSendsAnError, FailureClass.UNKNOWN, "scheduler died"),
    (servers.ServerThatRefuses, FailureClass.UNKNOWN, "HTTP 400"),
    (servers.ServerThatHangs, FailureClass.HANG, "no chunk for 2 s"),
    (servers.ServerThatOnlyComments, FailureClass.HANG, "no chunk for 2 s"),
    (servers.ServerBusyForever, FailureClass.UNKNOWN, "pending requests"),
]


@pytest.mark.parametrize("route", ["generate", "chat"])
@pytest.mark.parametrize(("fault", "kind", "words"), FAULTS)
def test_a_broken_server_fails_the_measurement_with_its_cause(
    client: ClientProcess,
    route: str,
    fault: type[PlainServer],
    kind: FailureClass,
    words: str,
) -> None:
    server = fault()
    with pytest.raises(BenchFailed, match=words) as caught:
        run(
            client,
            server,
            dataclasses.replace(SHORT, route=route, repeats=20),
            limits=Limits(progress_s=2.0, probe_s=2.0),
        )
    assert caught.value.failure.kind is kind
    assert "sk_abcdef" not in str(caught.value)
    assert len(server.bodies) <= 5  # all fail, so it does not go on to the next pass


def test_a_fifth_of_broken_streams_is_borne_and_not_credited(client: ClientProcess) -> None:
    server = servers.ServerThatResets()
    server.every = 5
    measured, requests = run(client, server, dataclasses.replace(SHORT, repeats=2))
    assert (measured.requests, measured.failed_requests) == (8, 2)
    assert measured.output_tokens == 72
    assert [r.error is None for r in requests].count(False) == 2


def test_streams_that_never_end_do_not_hold_up_the_others(client: ClientProcess) -> None:
    server = servers.ServerThatHangs()
    server.well = 9
    workload = dataclasses.replace(SHORT, repeats=2, concurrency=5)
    measured, _ = run(client, server, workload, limits=Limits(progress_s=3.0))
    assert (measured.requests, measured.failed_requests) == (9, 1)


def test_no_server_at_all_is_told_at_once(client: ClientProcess) -> None:
    with serving(PlainServer()) as url:
        pass
    with pytest.raises(BenchFailed) as caught:
        measure(
            client,
            url=url,
            model="m",
            workload=SHORT,
            gpus=0,
            clock=Clock(),
            limits=Limits(probe_s=1.0),
            salt="s",
        )
    assert caught.value.failure.kind is FailureClass.UNKNOWN


def test_a_busy_server_is_asked_to_flush_again(client: ClientProcess) -> None:
    server = servers.ServerBusyForAWhile()
    measured, _ = run(client, server)
    assert server.flushes == 3
    assert measured.requests == 5


def test_every_repeat_is_flushed_and_no_prompt_comes_twice(client: ClientProcess) -> None:
    server = servers.ServerWithPrefixCache()
    run(client, server, dataclasses.replace(SHORT, repeats=3, warmup=7, concurrency=8))
    assert server.flushes == 3
    assert server.hits == 0
    assert len(server.seen) == 7 + 3 * 10


def test_the_same_salt_sends_the_same_prompts(client: ClientProcess) -> None:
    first, second, other = PlainServer(), PlainServer(), PlainServer()
    run(client, first)
    run(client, second)
    run(client, other, salt="t")
    assert first.bodies == second.bodies
    assert first.bodies != other.bodies


def test_more_than_a_hundred_streams_are_open_at_once(client: ClientProcess) -> None:
    server = servers.ServerThatWaitsForAll()
    server.all_streams = 256
    workload = dataclasses.replace(SHORT, concurrency=256, max_tokens=3)
    measured, _ = run(client, server, workload)
    assert server.most_streams == 256
    assert measured.requests == 260


def test_a_duration_keeps_all_streams_busy(client: ClientProcess) -> None:
    workload = dataclasses.replace(SHORT, concurrency=4, repeats=None, duration_s=1.5)
    measured, requests = run(client, PlainServer(), workload)
    assert measured.window_s is not None
    assert measured.window_s > 1.0
    assert max(r.repeat for r in requests) >= 1
    assert max(r.sent_ns for r in requests) < 10e9
    assert len(measured.repeats_tok_s) == 1
    assert measured.output_tok_s_low is not None


def test_an_open_loop_sends_at_its_rate_whatever_comes_back(client: ClientProcess) -> None:
    server = PlainServer()
    server.ttft_s = 1.0
    workload = dataclasses.replace(SHORT, prompts="mixed", concurrency=None, request_rate=60.0)
    measured, requests = run(client, server, workload)
    assert measured.concurrency is None
    assert server.most_streams > 20
    sends = sorted(r.sent_ns for r in requests)
    assert sends == [r.sent_ns for r in requests]
    gaps = [b - a for a, b in itertools.pairwise(sends)]
    assert max(gaps) > 1.5 * min(gaps)


def test_engine_time_runs_as_fast_as_the_job_says(client: ClientProcess) -> None:
    measured, _ = run(client, PlainServer(), clock=Clock(10.0))
    assert measured.ttft_p50_ms is not None
    assert 550 < measured.ttft_p50_ms < 50_000


def test_progress_is_told(client: ClientProcess) -> None:
    seen: list[Progress] = []
    run(client, PlainServer(), dataclasses.replace(SHORT, repeats=2), on_progress=seen.append)
    assert (seen[-1].repeat, seen[-1].repeats, seen[-1].done, seen[-1].total) == (1, 2, 5, 5)
    assert seen[-1].output_tok_s is not None


class ServerDiedError(Exception):
    """Stands for what a slot's check raises."""


def test_a_check_that_raises_abandons_the_job_and_leaves_the_client_usable(
    client: ClientProcess,
) -> None:
    server = servers.ServerThatHangs()
    begun = time.monotonic()

    def check() -> None:
        if time.monotonic() - begun > 1.0:
            raise ServerDiedError

    with serving(server) as url:
        with pytest.raises(ServerDiedError):
            measure(
                client,
                url=url,
                model="m",
                workload=SHORT,
                gpus=0,
                clock=Clock(),
                limits=Limits(progress_s=600.0),
                salt="s",
                check=check,
            )
        deadline = time.monotonic() + 30
        while server.open_streams and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.open_streams == 0
    assert run(client, PlainServer())[0].requests == 5


def test_the_key_is_sent_as_a_bearer_token(client: ClientProcess) -> None:
    class ServerWithKey(PlainServer):
        keys: set[str]

        async def stream(self, request: Any) -> Any:
            self.keys.add(request.headers.get("Authorization"))
            return await super().stream(request)

    server = ServerWithKey()
    server.keys = set()
    run(client, server, api_key="k-1")
    assert server.keys == {"Bearer k-1"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", r":1: not JSON"),
        ('{"text": "x"}', r":1: expected an object with `prompt`"),
        ('{"id": 1, "prompt": "a"}\n{"id": 1, "prompt": "b"}', "stands 2 times"),
        ("", "holds no prompt"),
    ],
)
def test_a_mistake_in_a_prompt_file_is_one_line(
    client: ClientProcess, tmp_path: Path, line: str, words: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(line)
    with pytest.raises(UserError, match=words):
        run(client, PlainServer(), dataclasses.replace(SHORT, prompts=str(path)))


def test_a_users_own_messages_are_sent_as_a_chat(client: ClientProcess, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    path.write_text(json.dumps({"messages": messages, "kind": "why"}))
    server = PlainServer()
    workload = dataclasses.replace(SHORT, prompts=str(path), route="chat")
    _, requests = run(client, server, workload)
    sent = server.bodies[0]["messages"]
    assert sent[0]["content"].endswith("] Be brief.")
    assert sent[1] == messages[1]
    assert requests[0].prompt_kind == "why"


def test_a_trace_is_sent_at_its_times(client: ClientProcess, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    # Between whole milliseconds, which timers have.
    times = [10.0, *(10.1 + 0.0073 * i for i in range(60)), 11.0, 11.0]
    path.write_text("".join(f"{at}\n" for at in times), encoding="utf-8")
    workload = dataclasses.replace(SHORT, concurrency=None, arrivals=str(path))
    measured, requests = run(client, PlainServer(), workload)
    sends = [r.sent_ns / 1e9 for r in requests]
    assert measured.requests == len(times)
    assert [at for at, sent in zip(times, sends, strict=True) if sent < at - times[0] - 1e-6] == []


def test_a_ramp_opens_streams_one_by_one(client: ClientProcess) -> None:
    server = PlainServer()
    server.ttft_s = 1.5
    workload = dataclasses.replace(SHORT, concurrency=5, ramp_s=1.0)
    _, requests = run(client, server, workload)
    sends = sorted(r.sent_ns / 1e9 for r in requests)
    assert all(sent >= 0.2 * index for index, sent in enumerate(sends))


def test_passes_that_remain_are_left_out_when_it_is_enough(client: ClientProcess) -> None:
    seen: list[int] = []

    def enough(requests: Sequence[RequestTiming]) -> bool:
        seen.append(len(requests))
        return len(seen) == 2

    workload = dataclasses.replace(SHORT, repeats=5)
    measured, requests = run(client, PlainServer(), workload, enough=enough)
    assert seen == [5, 10]
    assert len(measured.repeats_tok_s) == 2
    assert len(requests) == 10
