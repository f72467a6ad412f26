"""Every fault shows as SGLang shows it: exit status and log line, or a stream that is wrong."""

import http.client
import json
import threading
import time
from pathlib import Path

import pytest

from tests.engines.simulated_launch import EAGLE3, Launched, generate_body, launch, shape

STARTING = [
    ("model_missing", 1, "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo"),
    ("nccl_init", -9, "torch.distributed.DistBackendError: NCCL error in: "),
    ("oom_load", -9, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"),
    ("memory_held", -9, "Raise --mem-fraction-static above 1.000 (minimum viable = "),
    ("kv_pool", -9, "RuntimeError: Not enough memory. Please try to increase --mem-fraction-st"),
    ("draft_incompatible", -9, "AssertionError: Attempted to load weight (torch.Size([7168, 2150"),
    ("unsupported_config", -9, "RuntimeError: Sizes of tensors must match except in dimension 1."),
    ("build_missing", -9, "ModuleNotFoundError: No module named 'deep_gemm'"),
    ("oom_graph", -9, "Exception: Capture cuda graph failed: CUDA out of memory."),
    ("port_conflict", 3, "[Errno 98] error while attempting to bind on address ('127.0.0.1', "),
]
SERVING = [
    ("draft_dies_at_first_request", "RuntimeError: The size of tensor a (8640) must match"),
    ("oom_serving=2", "torch.OutOfMemoryError: CUDA out of memory."),
    ("crash_kernel", "CUDA error: an illegal memory access was encountered"),
    ("killed", "crashed with exit code -9. Triggering SIGQUIT for cleanup..."),
    ("nccl_timeout", "crashed with exit code -6. Triggering SIGQUIT for cleanup..."),
    ("watchdog", "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)"),
]


@pytest.mark.parametrize(("fault", "status", "line"), STARTING)
def test_a_start_that_fails_says_why(tmp_path: Path, fault: str, status: int, line: str) -> None:
    with launch(tmp_path, *shape(3, 1, 4), env={"SWEEPER_SIM_FAULT": fault}, wait=None) as server:
        assert server.ended() == status
    assert line in server.log
    if status == -9:
        assert "Scheduler hit an exception: Traceback (most recent call last):" in server.log
        assert "Received sigquit from a child process." in server.log
        assert "kill_process_tree called: " in server.log.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (shape(1, 2, 8), "Capture cuda graph failed: selected index k out of range"),
        ((*shape(1, 2, 8), "--disable-cuda-graph"), "RuntimeError: selected index k out of range"),
        (shape(4, 2, 4), "RuntimeError: The expanded size of the tensor (4) must match the existing"),
        ((*shape(3, 1, 4), "--attention-backend=torch_native"),
         "ValueError: EAGLE is not supported in decode attention backend torch_native"),
        (("--speculative-algorithm=EAGLE3",), "object has no attribute 'set_embed'"),
        (("--mem-fraction-static=0.4",), "Loaded weights leave no GPU memory for the KV cache"),
        (("--mem-fraction-static=0.99",), "Capture cuda graph failed: CUDA out of memory."),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_work_fails_without_a_fault(
    tmp_path: Path, flags: tuple[str, ...], line: str
) -> None:
    with launch(tmp_path, *flags, wait=None) as server:
        assert server.ended() == -9
    assert line in server.log


def test_a_fault_may_strike_in_some_settings_only(tmp_path: Path) -> None:
    env = {"SWEEPER_SIM_FAULT": "oom_graph@speculative-num-steps>=3"}
    with launch(tmp_path, *shape(3, 1, 4), env=env, wait=None) as server:
        assert server.ended() == -9
    with launch(tmp_path, *shape(2, 1, 3), env=env) as server:
        assert server.process.poll() is None


@pytest.mark.parametrize(("fault", "line"), SERVING)
def test_a_server_that_dies_breaks_its_streams(tmp_path: Path, fault: str, line: str) -> None:
    with launch(
        tmp_path, *shape(3, 1, 4), env={"SWEEPER_SIM_FAULT": fault}, scale=200.0
    ) as server:
        if "=" in fault:
            server.json("POST", "/generate", generate_body("The first one works.", 40))
        body = {**generate_body("The last one.", 400), "stream": True}
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            server.request("POST", "/generate", body)
        assert server.ended() == -9
    assert line in server.log


@pytest.mark.parametrize(
    ("fault", "last"),
    [("nccl_hang", "Init parallel begin."), ("hang_start", "Multi-thread loading shards")],
)
def test_a_start_that_hangs_stays_silent(tmp_path: Path, fault: str, last: str) -> None:
    env = {"SWEEPER_SIM_FAULT": fault}
    with launch(tmp_path, env=env, wait=last) as server:
        before = _quiet(server)
        assert last in before.splitlines()[-1]
        assert server.process.poll() is None


def _quiet(server: Launched) -> str:
    """Return the log once it has not grown for a while."""
    log = ""
    while log != (log := server.log):
        time.sleep(0.5)
    return log


def test_a_silent_scheduler_hides_behind_a_healthy_face(tmp_path: Path) -> None:
    with launch(tmp_path, env={"SWEEPER_SIM_FAULT": "hang_serving=2"}) as server:
        server.json("POST", "/generate", generate_body("Works.", 30))
        with pytest.raises(TimeoutError):
            server.request("POST", "/generate", generate_body("Hangs.", 60), timeout_s=1.5)
        assert server.request("GET", "/health")[0] == 200
        assert server.request("GET", "/v1/models")[0] == 200
        with pytest.raises(TimeoutError):
            server.request("GET", "/server_info", timeout_s=1.0)
        assert server.process.poll() is None


def test_a_hung_scheduler_turns_health_to_503(tmp_path: Path) -> None:
    with launch(
        tmp_path,
        "--watchdog-timeout=100000",
        env={"SWEEPER_SIM_FAULT": "watchdog"},
        scale=100.0,
    ) as server:
        with pytest.raises(TimeoutError):
            server.request("POST", "/generate", generate_body("Hangs.", 60), timeout_s=1.0)
        assert server.request("GET", "/health")[0] == 503
        assert "Health check failed." in server.log


def test_health_may_lie_while_weights_load(tmp_path: Path) -> None:
    with launch(
        tmp_path,
        env={"SWEEPER_SIM_FAULT": "health_lies"},
        start_s=60.0,
        scale=20.0,
        wait="Load weight begin",
    ) as server:
        assert server.request("GET", "/health")[0] == 200
        assert "The server is fired up" not in server.log
        assert server.json("POST", "/generate", generate_body("Late.", 5))["text"]


def test_a_compile_delays_the_start_and_slows_the_first_minute(tmp_path: Path) -> None:
    with launch(tmp_path, env={"SWEEPER_SIM_FAULT": "slow_jit=20"}, scale=50.0) as server:
        assert "\rDeepGEMM warmup:  12%|" in server.log
        meta = server.json("POST", "/generate", generate_body("Slowly.", 100))["meta_info"]
        assert meta["e2e_latency"] > 100 * 0.0215


def test_every_nth_stream_is_cut(tmp_path: Path) -> None:
    with launch(tmp_path, env={"SWEEPER_SIM_FAULT": "truncated_stream=2"}) as server:
        body = generate_body("Streams.", 40)
        assert server.stream("/generate", body)[-1]["meta_info"]["completion_tokens"] == 40
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            server.stream("/generate", body)
        assert server.stream("/generate", body)[-1]["meta_info"]["completion_tokens"] == 40


def test_an_error_may_stand_inside_a_stream(tmp_path: Path) -> None:
    with launch(tmp_path, env={"SWEEPER_SIM_FAULT": "error_in_stream"}) as server:
        *good, bad = server.stream("/generate", generate_body("Streams.", 40))
        assert bad["error"]["code"] == 500
        assert good[-1]["meta_info"]["completion_tokens"] < 40


def test_answers_may_repeat_one_token(tmp_path: Path) -> None:
    with launch(tmp_path, env={"SWEEPER_SIM_FAULT": "degenerate"}) as server:
        answer = server.json("POST", "/generate", generate_body("Say more.", 40))
        assert len(set(answer["output_ids"])) == 1


def test_a_stream_may_stay_open_after_its_end(tmp_path: Path) -> None:
    fault = {"SWEEPER_SIM_FAULT": "slow_close=40"}
    with launch(tmp_path, env=fault) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        body = {**generate_body("Close slowly.", 5), "stream": True}
        connection.request(
            "POST", "/generate", json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        while answer.readline() != b"data: [DONE]\n":
            pass
        done = time.monotonic()
        answer.read()
        connection.close()
        assert time.monotonic() - done > 1.0


def test_an_ngram_table_needs_no_draft_model(tmp_path: Path) -> None:
    with launch(tmp_path, "--speculative-algorithm=NGRAM") as server:
        meta = server.json("POST", "/generate", generate_body("Words.", 60))["meta_info"]
        assert meta["spec_verify_ct"] < 59
        assert "LlamaForCausalLMEagle3" not in server.log


def test_a_draft_with_defaults_only_serves_many_at_once(tmp_path: Path) -> None:
    with launch(tmp_path, *EAGLE3) as server:
        bodies = [generate_body(f"Prompt {i}", 50) for i in range(8)]
        asking = [
            threading.Thread(target=server.json, args=("POST", "/generate", b)) for b in bodies
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(60)
        info = server.json("GET", "/server_info")
        assert info["speculative_num_steps"] == 3
        assert server.request("POST", "/flush_cache")[0] == 200
