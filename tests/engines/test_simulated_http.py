"""Every endpoint's shape, and what holds of streams."""

import http.client
import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engines.simulated_launch import Launched, generate_body, launch, shape

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    folder = tmp_path_factory.mktemp("http")
    with launch(
        folder, *shape(3, 1, 9), "--enable-metrics", "--decode-log-interval=5"
    ) as launched:
        yield launched


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    folder = tmp_path_factory.mktemp("baseline")
    with launch(folder, "--api-key", "hush", "--enable-cache-report") as launched:
        yield launched


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_server_info_tells_effective_flags_and_that_it_is_simulated(
    server: Launched, path: str
) -> None:
    info = server.json("GET", path)
    assert info["simulated"] is True
    assert info["time_scale"] == 20.0
    assert info["calibration"] == "kimi-k2.5-later"
    assert info["version"] == "0.5.23"
    assert info["status"] == "ready"
    assert info["speculative_num_draft_tokens"] == 4
    assert info["max_running_requests"] == 48
    assert info["port"] == server.port
    assert "--speculative-num-draft-tokens=9" in info["launch_command"]
    assert info["internal_states"][0]["memory_usage"]["token_capacity"] > 100_000


@pytest.mark.parametrize("path", ["/health", "/health_generate", "/ready", "/ping"])
def test_a_ready_server_is_healthy(server: Launched, path: str) -> None:
    assert server.request("GET", path) == (200, "")


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_model_info_names_the_model(server: Launched, path: str) -> None:
    assert server.json("GET", path)["model_path"] == "/models/Kimi-K2.5"


def test_models_lists_the_served_name(server: Launched) -> None:
    (card,) = server.json("GET", "/v1/models")["data"]
    assert card["id"] == "/models/Kimi-K2.5"
    assert card["max_model_len"] == 262144


def test_an_unknown_path_is_not_found(server: Launched) -> None:
    assert server.request("GET", "/nowhere")[0] == 404


def test_generate_counts_tokens_and_acceptance(server: Launched) -> None:
    answer = server.json("POST", "/generate", generate_body("Tell me of ships.", 90))
    meta = answer["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 90}
    assert meta["completion_tokens"] == len(answer["output_ids"]) == len(answer["text"].split())
    histogram = meta["spec_correct_drafts_histogram"]
    assert sum(histogram) == meta["spec_verify_ct"]
    assert sum(i * n for i, n in enumerate(histogram)) == meta["spec_num_correct_drafts"]
    assert meta["spec_num_proposed_drafts"] == 3 * meta["spec_verify_ct"]
    assert meta["spec_accept_length"] == pytest.approx(90 / meta["spec_verify_ct"])


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(1, 60), st.text(min_size=1, max_size=40))
def test_a_stream_of_any_length_adds_up(server: Launched, tokens: int, prompt: str) -> None:
    events = server.stream("/generate", generate_body(prompt, tokens))
    counts = [e["meta_info"]["completion_tokens"] for e in events]
    assert counts == sorted(set(counts))
    assert counts[-1] == tokens
    assert all(b["text"].startswith(a["text"]) for a, b in itertools.pairwise(events))
    assert all(e["meta_info"]["finish_reason"] is None for e in events[:-1])
    last = events[-1]["meta_info"]
    steps = last.get("spec_verify_ct", 0)
    if steps:
        made = 1 + steps + last["spec_num_correct_drafts"]
        assert tokens <= made < tokens + 4  # the last step may overshoot
    else:
        assert tokens == 1


@pytest.mark.parametrize("route", ["completions", "chat/completions"])
def test_an_openai_stream_adds_up(server: Launched, route: str) -> None:
    body: dict[str, Any] = {
        "max_tokens": 70,
        "temperature": 0,
        "ignore_eos": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_spec_tokens_details": True,
    }
    is_chat = route.startswith("chat")
    prompt = "Write a Python function."
    body |= {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}
    events = server.stream(f"/v1/{route}", body)
    *pieces, details, usage = events
    if is_chat:
        assert pieces[0]["choices"][0]["delta"]["role"] == "assistant"
        texts = [e["choices"][0]["delta"]["content"] for e in pieces]
    else:
        texts = [e["choices"][0]["text"] for e in pieces]
    counts = [e["usage"]["completion_tokens"] for e in pieces if e["usage"]]
    assert counts == sorted(set(counts))
    assert counts[-1] == usage["usage"]["completion_tokens"] == 70
    assert len("".join(texts).split()) == 70
    assert pieces[-1]["choices"][0]["finish_reason"] == "length"
    assert details["choices"] == usage["choices"] == []
    spec = details["sglext"]["spec_tokens_details"]
    assert sum(spec["spec_correct_drafts_histogram"]) == spec["spec_verify_ct"]


def test_an_openai_answer_without_a_stream_holds_usage_and_acceptance(server: Launched) -> None:
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 30,
        "ignore_eos": True,
        "return_meta_info": True,
        "return_spec_tokens_details": True,
    }
    answer = server.json("POST", "/v1/chat/completions", body)
    assert answer["usage"]["completion_tokens"] == 30
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["choices"][0]["meta_info"]["spec_verify_ct"] > 0
    assert answer["sglext"]["spec_tokens_details"]["spec_verify_ct"] > 0
    assert server.json("POST", "/v1/completions", {"prompt": "Hi"})["usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": 16,
        "total_tokens": 17,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }


def test_an_answer_may_end_by_itself(server: Launched) -> None:
    body = {"text": "Hello", "sampling_params": {"max_new_tokens": 2000, "temperature": 0}}
    meta = server.json("POST", "/generate", body)["meta_info"]
    assert meta["finish_reason"]["type"] == "stop"
    assert meta["completion_tokens"] < 2000


def test_the_same_prompt_gets_the_same_answer(server: Launched) -> None:
    first, again = (server.json("POST", "/generate", generate_body("Same?", 40)) for _ in range(2))
    assert first["text"] == again["text"]
    assert (
        first["meta_info"]["spec_correct_drafts_histogram"]
        == again["meta_info"]["spec_correct_drafts_histogram"]
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"sampling_params": {}}),
        ("/generate", {"text": ["two", "prompts"]}),
        ("/generate", generate_body("x", 300_000)),
        ("/v1/chat/completions", {"messages": []}),
        ("/v1/completions", {}),
    ],
)
def test_a_bad_request_is_answered_with_400_and_a_reason(
    server: Launched, path: str, body: dict[str, Any]
) -> None:
    status, text = server.request("POST", path, body)
    assert status == 400
    error = json.loads(text)
    assert error.get("message") or error["error"]["message"]


def test_flushing_empties_cache_and_counters(server: Launched) -> None:
    prompt = "A long prompt that is sent twice. " * 20
    assert server.request("POST", "/flush_cache")[0] == 200
    first, again = (
        server.json("POST", "/generate", generate_body(prompt, 60))["meta_info"] for _ in range(2)
    )
    assert first["cached_tokens"] == 0
    assert again["cached_tokens"] == again["prompt_tokens"] - 1
    assert server.json("GET", "/server_info")["internal_states"][0]["avg_spec_accept_length"] > 1
    status, text = server.request("GET", "/flush_cache")
    assert (status, text.startswith("Cache flushed")) == (200, True)
    assert "avg_spec_accept_length" not in server.json("GET", "/server_info")["internal_states"][0]
    renewed = server.json("POST", "/generate", generate_body(prompt, 5))["meta_info"]
    assert renewed["cached_tokens"] == 0


def test_a_busy_server_does_not_flush_and_aborts_on_request(server: Launched) -> None:
    answers: list[dict[str, Any]] = []

    def ask() -> None:
        body = {**generate_body("Count for ever.", 20_000), "rid": "long"}
        answers.append(server.json("POST", "/generate", body))

    asking = threading.Thread(target=ask)
    asking.start()
    while not server.request("POST", "/flush_cache")[1].startswith("Flush cache failed"):
        time.sleep(0.02)
    assert server.request("POST", "/flush_cache")[0] == 400
    assert server.request("POST", "/abort_request", {"rid": "long"})[0] == 200
    asking.join(30)
    assert answers[0]["meta_info"]["finish_reason"]["type"] == "abort"
    assert server.request("POST", "/flush_cache?timeout=30")[0] == 200


def test_a_client_that_goes_away_frees_its_place(server: Launched) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    body = {**generate_body("Nobody listens.", 20_000), "stream": True}
    connection.request("POST", "/generate", json.dumps(body), JSON)
    connection.getresponse().read(10)
    connection.close()
    assert server.request("POST", "/flush_cache?timeout=100")[0] == 200


def test_a_slow_client_gets_chunks_of_several_steps(server: Launched) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = {**generate_body("Slowly.", 4000), "stream": True}
    connection.request("POST", "/generate", json.dumps(body), JSON)
    answer = connection.getresponse()
    server.wait_for("#token: 2", 30)
    assert server.request("POST", "/flush_cache?timeout=1000")[0] == 200
    events = [e for e in answer.read().split(b"\n\n") if e]
    connection.close()
    last = json.loads(events[-2].removeprefix(b"data: "))
    assert last["meta_info"]["completion_tokens"] == 4000
    assert len(events) < last["meta_info"]["spec_verify_ct"]


def test_metrics_have_sglang_s_names(server: Launched) -> None:
    server.json("POST", "/generate", generate_body("For the metrics.", 60))
    status, text = server.request("GET", "/metrics")
    assert status == 200
    values = {
        line.partition("{")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if not line.startswith("#")
    }
    assert values["sglang:spec_verify_calls_total"] > 0
    assert values["sglang:spec_accept_length"] > 1
    assert values["sglang:generation_tokens_total"] > 60
    assert values["sglang:num_running_reqs"] == 0


def test_the_log_has_sglang_s_lines(server: Launched) -> None:
    server.json("POST", "/generate", generate_body("For the log.", 60))
    log = server.log
    assert "SIMULATED" in log.splitlines()[0]
    for text in (
        "'model_path': '/models/Kimi-K2.5'",
        "TP7] Init parallel begin.",
        "TP0] Load weight begin. avail mem=",
        "type=LlamaForCausalLMEagle3",
        "TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: ",
        "Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=4, bs=[1, 2",
        "Capture draft extend CUDA graph end. elapsed=",
        "\rCapturing batches (bs=1 avail_mem=",
        "max_total_num_tokens=",
        "Engine startup timings (s): load_weight=",
        f"INFO:     Uvicorn running on http://127.0.0.1:{server.port} (Press CTRL+C to quit)",
        '"POST /generate HTTP/1.1" 200 OK',
        "TP0] Prefill batch, #new-seq: 1, #new-token: ",
        "TP0] Decode batch, #running-req: 1, #token: ",
        ", accept len: ",
        ", cuda graph: True, gen throughput (token/s): ",
    ):
        assert text in log, text


def test_without_speculation_nothing_is_said_of_acceptance(baseline: Launched) -> None:
    headers = {"Authorization": "Bearer hush"}
    status, text = baseline.request(
        "POST", "/generate", generate_body("Plainly.", 50), headers=headers
    )
    assert status == 200
    assert "spec_" not in text
    assert "accept len" not in baseline.log
    assert "Capture target decode CUDA graph begin" in baseline.log
    assert baseline.request("GET", "/metrics")[0] == 404


def test_a_key_is_asked_for_except_by_health(baseline: Launched) -> None:
    assert baseline.request("GET", "/server_info")[0] == 401
    assert baseline.request("GET", "/health")[0] == 200
    wrong = {"Authorization": "Bearer hushh"}
    assert baseline.request("GET", "/server_info", headers=wrong)[0] == 401
    right = {"Authorization": "Bearer hush"}
    assert baseline.request("GET", "/server_info", headers=right)[0] == 200
    assert "hush" not in baseline.log.replace("--api-key hush", "")


def test_running_requests_are_limited_and_the_rest_waits(tmp_path: Path) -> None:
    with launch(tmp_path, "--max-running-requests=2", "--decode-log-interval=1") as server:
        asking = [
            threading.Thread(
                target=server.json, args=("POST", "/generate", generate_body(f"{i}", 60))
            )
            for i in range(6)
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(60)
        log = server.log
    assert "#running-req: 2" in log
    assert "#running-req: 3" not in log
    assert "#queue-req: 2" in log
