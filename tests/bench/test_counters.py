"""Acceptance by counters that were going up before the window, on some ranks, and not at once."""

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from sweeper.bench.counters import Counted, parse
from sweeper.bench.process import ClientProcess
from sweeper.records import Workload
from tests.bench.servers import PlainServer, run

WORKLOAD = Workload(name="w", max_tokens=16, warmup=2, route="chat", repeats=2)
RANKS = 4


class ServerOfSeveralRanks(PlainServer):
    """Says nothing of acceptance in its answers; three tokens a step, but one in the warm-up.

    Its counters count from its start. `/server_info` holds what must not be taken for it: a mean
    since the start, on one rank.
    """

    step_s = 0.001

    def __init__(self) -> None:
        super().__init__()
        self.steps = [5.0] * RANKS
        self.tokens = [5.0 + 1] * RANKS
        self.requests = [1.0] * RANKS

    async def answer(self, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        warm = len(self.bodies) <= 2
        self.per_chunk = 1 if warm else 3
        tokens = int(body.get("max_tokens") or body["sampling_params"]["max_new_tokens"])
        async for piece in super().answer(path, body):
            yield piece
        rank = len(self.bodies) % RANKS
        self.tokens[rank] += tokens
        self.requests[rank] += 1
        self.steps[rank] += (tokens - 1) / (1 if warm else 3)

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        lines = ['sglang:spec_accept_length{dp_rank="0"} 1.0']
        for rank in range(RANKS):
            for name, values in (
                ("spec_verify_calls", self.steps),
                ("generation_tokens", self.tokens),
                ("num_requests", self.requests),
            ):
                lines.append(f'sglang:{name}_total{{dp_rank="{rank}"}} {values[rank]}')
        return web.Response(text="\n".join(lines))

    async def info(self, request: web.Request) -> web.StreamResponse:
        states = [{"avg_spec_accept_length": 1.0}] + [{"avg_spec_accept_length": None}] * 3
        return web.json_response({"internal_states": states})

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/server_info", self.info)
        return app


class ServerWithoutSpeculation(ServerOfSeveralRanks):
    """Has the counters, but makes no verify steps."""

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="sglang:generation_tokens_total 9\nsglang:num_requests_total 1\n")


def test_counters_of_all_ranks_over_the_window_alone_give_the_length(
    client: ClientProcess,
) -> None:
    measured, _ = run(client, ServerOfSeveralRanks(), WORKLOAD)
    assert measured.accept_source == "counters"
    assert measured.accept_length == pytest.approx(3.0)
    assert measured.step_time_ms == pytest.approx(3.0 * (measured.tpot_p50_ms or 0))


def test_what_a_request_says_itself_goes_before_counters(client: ClientProcess) -> None:
    server = ServerOfSeveralRanks()
    server.steps = [1e9] * RANKS
    measured, _ = run(client, server, dataclasses.replace(WORKLOAD, route="generate"))
    assert measured.accept_source == "histogram"
    assert measured.accept_length == pytest.approx(3.0)


@pytest.mark.parametrize("kind", [PlainServer, ServerWithoutSpeculation])
def test_without_counters_or_steps_the_length_is_missing(
    client: ClientProcess, kind: type[PlainServer]
) -> None:
    measured, _ = run(client, kind(), WORKLOAD)
    assert (measured.accept_length, measured.accept_source) == (None, None)


def test_sums_are_over_all_labels() -> None:
    text = (
        "# HELP sglang:num_requests_total all\n"
        'sglang:num_requests_total{a="1"} 2.0\nsglang:num_requests_total{a="2"} 3.0\n'
        "sglang:generation_tokens_total 1e2\nsglang:spec_verify_calls_total nonsense\n"
    )
    assert parse(text) == Counted(verify_steps=0.0, tokens=100.0, requests=5.0)
    assert parse("vllm:num_requests_total 3") is None
