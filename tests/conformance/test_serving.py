"""Endpoints, streams, acceptance and log of a serving server: the same checks on both kinds.

`docs/engines.md` lists where the simulated server differs on purpose.
"""

import itertools
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sweeper.engines.base import Ending
from sweeper.engines.sglang import SGLang
from sweeper.engines.sglang_readback import FAIRNESS
from sweeper.errors import FailureClass, Stage
from sweeper.records import Launch
from tests.conformance.kinds import KINDS, MEASURED, NGRAM, START_S, Kind, launch
from tests.engines.simulated_launch import READY, Launched, generate_body
from tests.real.installed import CPU_FLAGS, MODEL

ENGINE = SGLang()
TOO_MANY = 1_000_000
OPTIONS = {
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "return_spec_tokens_details": True,
}
#: What `/server_info` must hold for the read-back, the report and a person.
INFO_KEYS = {"version", "model_path", "port", "max_total_num_tokens", "internal_states", "status"}
STATE_KEYS = {"effective_max_running_requests_per_dp", "memory_usage", "last_gen_throughput"}
SPEC_KEYS = {
    "spec_accept_rate",
    "spec_accept_length",
    "spec_num_correct_drafts",
    "spec_num_proposed_drafts",
    "spec_verify_ct",
    "spec_correct_drafts_histogram",
}
METRICS = {
    "sglang:spec_accept_length",
    "sglang:spec_accept_rate",
    "sglang:spec_num_steps",
    "sglang:spec_num_draft_tokens",
    "sglang:spec_verify_calls_total",
    "sglang:generation_tokens_total",
    "sglang:prompt_tokens_total",
    "sglang:num_requests_total",
    "sglang:gen_throughput",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:token_usage",
    "sglang:num_retracted_reqs",
    "sglang:time_to_first_token_seconds_sum",
    "sglang:e2e_request_latency_seconds_count",
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture(scope="module")
def server(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    with launch(kind, tmp_path_factory.mktemp(kind.name), NGRAM) as launched:
        yield launched


def openai_body(route: str, tokens: int, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "m", "max_tokens": tokens, "temperature": 0, **more}
    if route == "chat/completions":
        body["messages"] = [{"role": "user", "content": "tell a story of a tiny server"}]
    else:
        body["prompt"] = "tell a story of a tiny server"
    return {**body, "ignore_eos": True}


def counters(server: Launched) -> dict[str, float]:
    """Return each metric's sum over all its labels."""
    found: dict[str, float] = {}
    for line in server.request("GET", "/metrics")[1].splitlines():
        if not line.startswith("#"):
            name = line.partition("{")[0]
            found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
    return found


@pytest.mark.parametrize("path", ["/health", "/health_generate", "/ready", "/ping"])
def test_a_ready_server_is_healthy(server: Launched, path: str) -> None:
    assert server.request("GET", path) == (200, "")


def test_a_health_check_takes_a_second_and_ready_does_not(server: Launched) -> None:
    took = []
    for path in ("/health", "/ready"):
        begun = time.monotonic()
        server.request("GET", path)
        took.append(time.monotonic() - begun)
    assert took[0] >= 0.9
    assert took[1] < took[0]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/get_load", 404),
        ("GET", "/generate", 405),
        ("HEAD", "/health", 405),
        ("GET", "/get_server_info", 200),
        ("GET", "/get_model_info", 200),
        ("GET", "/flush_cache", 200),
        ("POST", "/flush_cache", 200),
        ("GET", "/flush_cache?timeout=1", 200),
    ],
)
def test_routes_answer_alike(server: Launched, method: str, path: str, status: int) -> None:
    found, text = server.request(method, path)
    assert found == status
    if status in {404, 405} and method != "HEAD":
        assert set(json.loads(text)) == {"detail"}


def test_models_and_model_info_name_the_model(server: Launched) -> None:
    (card,) = server.json("GET", "/v1/models")["data"]
    assert (card["id"], card["max_model_len"], card["owned_by"]) == (MODEL, 2048, "sglang")
    info = server.json("GET", "/model_info")
    assert (info["model_path"], info["is_generation"]) == (MODEL, True)


def test_server_info_is_read_back_alike(server: Launched) -> None:
    info = server.json("GET", "/server_info")
    assert info.keys() >= INFO_KEYS
    assert info["internal_states"][0].keys() >= STATE_KEYS
    flags = {**CPU_FLAGS, **MEASURED, **NGRAM}
    asked = Launch(engine="sglang", command=("x",), model=MODEL, gpus=0, flags=flags)
    facts = ENGINE.read_back(asked, info, port=server.port)
    assert facts.rewritten == {}
    assert facts.version == "0.5.23"
    absent = set(FAIRNESS) - facts.flags.keys()
    assert absent == set()
    wanted = {
        "speculative-algorithm": "NGRAM",
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": 4,
        "speculative-num-steps": 4,
        "max-running-requests": 48,
        "page-size": 1,
        "tp-size": 1,
        "disable-overlap-schedule": True,
    }
    assert {name: facts.flags[name] for name in wanted} == wanted
    assert facts.max_total_tokens == 8192


def test_the_ready_probe_makes_tokens(server: Launched) -> None:
    probe = ENGINE.ready_probe()
    answer = server.json(probe.method, probe.path, probe.json)
    assert answer["meta_info"]["completion_tokens"] == 8


def test_an_answer_tells_its_acceptance(server: Launched) -> None:
    answer = server.json("POST", "/generate", generate_body("a tiny server", 61))
    meta = answer["meta_info"]
    assert meta.keys() >= SPEC_KEYS
    assert meta["finish_reason"] == {"type": "length", "length": 61}
    assert meta["completion_tokens"] == len(answer["output_ids"]) == 61
    histogram = meta["spec_correct_drafts_histogram"]
    assert len(histogram) <= 4
    assert sum(histogram) == meta["spec_verify_ct"]
    assert sum(i * n for i, n in enumerate(histogram)) == meta["spec_num_correct_drafts"]
    assert meta["spec_num_proposed_drafts"] == 3 * meta["spec_verify_ct"]
    assert meta["spec_accept_length"] == pytest.approx(61 / meta["spec_verify_ct"])


def test_acceptance_by_histogram_is_that_of_the_metrics(server: Launched) -> None:
    prompts = ("tests of tiny decoding", "the servers a", "speculative")
    # A counter exists from the first request on.
    server.json("POST", "/generate", generate_body("first", 5))
    assert server.request("POST", "/flush_cache?timeout=30")[0] == 200
    before = counters(server)
    steps = drafts = tokens = 0
    for prompt in prompts:
        meta = server.json("POST", "/generate", generate_body(prompt, 80))["meta_info"]
        steps += meta["spec_verify_ct"]
        drafts += meta["spec_num_correct_drafts"]
        tokens += meta["completion_tokens"]
    after = counters(server)
    assert after["sglang:spec_verify_calls_total"] - before["sglang:spec_verify_calls_total"] == (
        steps
    )
    made = after["sglang:generation_tokens_total"] - before["sglang:generation_tokens_total"]
    assert made == tokens == 240
    # Each request: a token of the prefill, then accepted drafts and one more a step; the last
    # step of each may overshoot by at most 3, which are counted as accepted and cut off.
    assert 0 <= len(prompts) + steps + drafts - tokens <= 3 * len(prompts)
    state = server.json("GET", "/server_info")["internal_states"][0]
    # It stands still between two decode lines, so its last window is missing.
    assert state["avg_spec_accept_length"] == pytest.approx((steps + drafts) / steps, rel=0.2)


def test_a_stream_is_cumulative_and_ends_with_the_acceptance(server: Launched) -> None:
    events = server.stream("/generate", generate_body("stream of a tiny server", 50))
    counts = [e["meta_info"]["completion_tokens"] for e in events]
    assert counts == sorted(set(counts))
    assert counts[-1] == 50
    assert max(b - a for a, b in itertools.pairwise(counts)) <= 50
    assert [len(e["output_ids"]) for e in events] == counts
    assert all(e["meta_info"]["finish_reason"] is None for e in events[:-1])
    assert not any(SPEC_KEYS & e["meta_info"].keys() for e in events[:-1])
    assert events[-1]["meta_info"].keys() >= SPEC_KEYS


@pytest.mark.parametrize("route", ["completions", "chat/completions"])
def test_an_openai_stream_ends_with_acceptance_and_usage(server: Launched, route: str) -> None:
    *pieces, details, usage = server.stream(f"/v1/{route}", openai_body(route, 50, **OPTIONS))
    assert details["choices"] == usage["choices"] == []
    assert details["sglext"]["spec_tokens_details"].keys() >= SPEC_KEYS
    assert usage["usage"]["completion_tokens"] == 50
    counts = [e["usage"]["completion_tokens"] for e in pieces if e.get("usage")]
    assert counts == sorted(set(counts))
    assert counts[-1] == 50
    ends = [e["choices"][0]["finish_reason"] for e in pieces]
    assert ends[-1] == "length"
    assert set(ends[:-1]) == {None}
    if route == "chat/completions":
        first = pieces[0]["choices"][0]["delta"]
        assert first == {"role": "assistant", "content": "", "reasoning_content": None}
        assert {"content", "reasoning_content"} >= pieces[1]["choices"][0]["delta"].keys()
    else:
        assert isinstance(pieces[0]["choices"][0]["text"], str)


@pytest.mark.parametrize("route", ["completions", "chat/completions"])
def test_an_openai_answer_holds_usage_and_acceptance(server: Launched, route: str) -> None:
    body = openai_body(route, 20, return_spec_tokens_details=True)
    answer = server.json("POST", f"/v1/{route}", body)
    usage = {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}
    assert answer["usage"].keys() >= usage
    assert answer["usage"]["completion_tokens"] == 20
    assert answer["sglext"]["spec_tokens_details"].keys() >= SPEC_KEYS
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_request_that_does_not_fit_is_refused_by_each_route_in_its_way(
    server: Launched,
) -> None:
    words = "Requested token count exceeds the model's maximum context length of 2048 tokens."
    status, text = server.request("POST", "/generate", generate_body("x", TOO_MANY))
    assert (status, set(json.loads(text))) == (400, {"error"})
    assert words in json.loads(text)["error"]["message"]
    (event,) = server.stream("/generate", generate_body("x", TOO_MANY))
    assert words in event["error"]["message"]
    assert event["error"]["code"] == 400
    of_chat = "max_completion_tokens is too large: 1000000.This model supports at most 2048"
    for route, said in (("completions", words), ("chat/completions", of_chat)):
        for streamed in (False, True):
            body = openai_body(route, TOO_MANY, stream=streamed)
            status, text = server.request("POST", f"/v1/{route}", body)
            answer = json.loads(text)
            assert (status, answer["object"], answer["code"]) == (400, "error", 400)
            assert said in answer["message"]


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("/generate", None, {"Content-Type": "application/json"}),
        ("/v1/completions", None, {"Content-Type": "application/json"}),
        ("/v1/chat/completions", {"model": "m"}, {}),
        ("/generate", generate_body("no content type", 5), {"Content-Type": "text/plain"}),
    ],
    ids=["empty", "empty completion", "no messages", "not said to be JSON"],
)
def test_a_malformed_body_is_refused_with_400(
    server: Launched, path: str, body: dict[str, Any] | None, headers: dict[str, str]
) -> None:
    status, text = server.request("POST", path, body, headers=headers)
    assert status == 400
    assert json.loads(text)["object"] == "error"


def test_a_busy_server_does_not_flush_and_aborts_all_on_request(server: Launched) -> None:
    answers: list[dict[str, Any]] = []

    def ask() -> None:
        answers.append(server.json("POST", "/generate", generate_body("count for ever", 1900)))

    for _ in range(10):
        asking = threading.Thread(target=ask)
        asking.start()
        status, text = server.request("POST", "/flush_cache")
        while status != 400 and asking.is_alive():
            status, text = server.request("POST", "/flush_cache")
        aborted = server.request("POST", "/abort_request", {"abort_all": True})
        asking.join(60)
        assert aborted == (200, "")
        if answers[-1]["meta_info"]["finish_reason"]["type"] == "abort":
            break
    assert (status, text) == (400, "Flush cache failed.\n")
    assert "Cache not flushed because there are pending requests." in server.log
    assert answers[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    assert answers[-1]["meta_info"]["completion_tokens"] < 1900
    status, text = server.request("POST", "/flush_cache?timeout=30")
    assert (status, text.splitlines()[0]) == (200, "Cache flushed.")


def test_metrics_have_the_names_that_are_read(server: Launched) -> None:
    server.json("POST", "/generate", generate_body("for the metrics", 40))
    assert METRICS - counters(server).keys() == set()


def test_the_log_tells_stages_acceptance_and_speed(server: Launched) -> None:
    server.json("POST", "/generate", generate_body("for the log", 120))
    reader = ENGINE.log_reader()
    reader.feed(server.log.encode())
    assert reader.stage is Stage.SERVING
    assert reader.speculating is True
    assert {"load_weight", "kv_cache_allocation", "scheduler_e2e"} <= reader.startup_s.keys()
    assert any("Max running requests is reset to 48" in line for line in reader.notices)
    window = reader.decode
    assert window.lines > 0
    assert window.accept_lines == window.graph_lines == window.without_graph == window.lines
    assert window.accept_length_mean is not None
    assert 1.0 <= window.accept_length_mean <= 4.0
    assert window.gen_tok_s is not None
    assert reader.failure(Ending(exit_code=None)) is None
    assert reader.failure(Ending(exit_code=0)) is None


def test_the_log_passes_each_stage_in_order(server: Launched) -> None:
    reader = ENGINE.log_reader()
    stages: list[Stage] = []
    for line in server.log.encode().splitlines(keepends=True):
        reader.feed(line)
        if not stages or stages[-1] is not reader.stage:
            stages.append(reader.stage)
    wanted = [Stage.IMPORT, Stage.DIST_INIT, Stage.LOAD, Stage.KV_POOL, Stage.WARMUP, Stage.READY]
    assert [stage for stage in stages if stage in wanted] == wanted


def test_a_second_server_takes_the_first_one_s_answer_for_its_own(
    kind: Kind, server: Launched
) -> None:
    with launch(kind, server.path.parent, NGRAM, port=server.port, wait=None) as second:
        assert second.ended(START_S) == 3
    assert "[Errno 98] error while attempting to bind on address" in second.log
    assert READY in second.log
    assert server.request("GET", "/health")[0] == 200
    reader = ENGINE.log_reader()
    reader.feed(second.log.encode())
    failure = reader.failure(Ending(exit_code=3, foreign_on_port=True))
    assert failure is not None
    assert failure.kind is FailureClass.PORT_CONFLICT
