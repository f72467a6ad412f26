"""The log reader against real logs, reported lines, and bytes cut anywhere."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.engines.base import Ending
from sweeper.engines.sglang_log import SGLangLogReader
from sweeper.errors import Failure, FailureClass, Stage

LOGS = Path(__file__).parent.parent / "data" / "sglang_logs"
EXPECTED: list[dict[str, Any]] = [
    json.loads(line) for line in (LOGS / "expected.jsonl").read_text().splitlines()
]
FAILED = [e for e in EXPECTED if e["file"].startswith("fail_")]
SLOW = [e for e in EXPECTED if e["class"] == "still_starting"]
HEALTHY = [e for e in EXPECTED if e["class"] == "healthy"]

F = FailureClass


def read(text: str | bytes, *, pieces: int | None = None) -> SGLangLogReader:
    data = text.encode() if isinstance(text, str) else text
    reader = SGLangLogReader()
    size = pieces or max(len(data), 1)
    for start in range(0, len(data), size):
        reader.feed(data[start : start + size])
    return reader


def fail(text: str, *, exit_code: int = 1, **ending: Any) -> Failure:
    failure = read(text).failure(Ending(exit_code=exit_code, **ending))
    assert failure is not None
    return failure


@pytest.mark.parametrize("case", FAILED, ids=lambda e: e["file"])
def test_a_failed_start_gets_its_class_stage_and_line(case: dict[str, Any]) -> None:
    reader = read((LOGS / case["file"]).read_bytes())
    failure = reader.failure(Ending(exit_code=case["exit"]))
    assert failure is not None
    assert (failure.kind, failure.stage) == (case["class"], case["stage"])
    assert failure.exit_code == case["exit"]
    if case["class"] != "gpu_memory_not_free":
        assert case["cause"] in failure.line
    assert failure.policy.stops_sweep == case.get("stop_sweep", failure.policy.stops_sweep)
    assert failure.policy.retry == (case["retry"] != "no")


@pytest.mark.parametrize("case", SLOW, ids=lambda e: e["file"])
def test_a_slow_start_is_no_failure_until_its_owner_gives_it_up(case: dict[str, Any]) -> None:
    reader = read((LOGS / case["file"]).read_bytes())
    assert reader.stage == case["stage"]
    assert reader.failure(Ending(exit_code=None)) is None
    given_up = reader.failure(Ending(exit_code=case["exit"], killed_by_us=True))
    assert given_up is not None
    assert given_up.kind is F.START_TIMEOUT
    outside = reader.failure(Ending(exit_code=case["exit"]))
    assert outside is not None
    assert outside.kind is F.KILLED


@pytest.mark.parametrize("killed_by_us", [True, False])
@pytest.mark.parametrize("case", HEALTHY, ids=lambda e: e["file"])
def test_an_orderly_end_is_healthy_whatever_its_exit_code(
    case: dict[str, Any], killed_by_us: bool
) -> None:
    reader = read((LOGS / case["file"]).read_bytes())
    assert reader.failure(Ending(exit_code=case["exit"], killed_by_us=killed_by_us)) is None
    assert reader.stage == case["stage"]
    assert reader.speculating == case["speculating"]
    assert reader.startup_s.items() >= case["startup_s"].items()


def test_decode_lines_are_counted_with_their_last_values() -> None:
    plain = read((LOGS / "ok_base.log").read_bytes()).decode
    assert (plain.lines, plain.without_graph, plain.accept_length) == (15, 0, None)
    assert plain.gen_tok_s == 843.27
    drafted = read((LOGS / "ok_tp2_eagle3.log").read_bytes()).decode
    assert (drafted.accept_length, drafted.accept_rate) == (2.23, 0.41)
    assert drafted.share_without_graph == 0
    assert not drafted.is_spec_ineffective


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_cutting_the_bytes_anywhere_changes_no_verdict(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(EXPECTED))
    whole = (LOGS / case["file"]).read_bytes()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=30)))
    reader = SGLangLogReader()
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        reader.feed(whole[start:end])
    uncut = read(whole)
    ending = Ending(exit_code=case["exit"])
    assert reader.failure(ending) == uncut.failure(ending)
    assert (reader.stage, reader.decode, reader.startup_s, reader.progress) == (
        uncut.stage,
        uncut.decode,
        uncut.startup_s,
        uncut.progress,
    )


@settings(deadline=None)
@given(st.binary(max_size=3000), st.integers(1, 7))
def test_bytes_that_are_no_log_are_read_without_harm(data: bytes, pieces: int) -> None:
    ending = Ending(exit_code=1)
    assert read(data, pieces=pieces).failure(ending) == read(data).failure(ending)


def test_a_letter_cut_in_two_is_read_whole() -> None:
    text = "ValueError: \N{SNOWMAN} CUDA out of memory \N{SNOWMAN}"
    assert read(text, pieces=1).failure(Ending(exit_code=1)) == fail(text)


STAMP = "[2026-03-09 00:57:15 TP4] "

#: Lines that were reported in public, and the class that each shows.
REPORTED: list[tuple[str, FailureClass]] = [
    ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", F.KV_POOL_TOO_SMALL),
    ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.25", F.KV_POOL_TOO_SMALL),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", F.OOM),
    ("Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 7 has a total capacity of 95.00", F.OOM),
    ("Exception: Capture CUDA graph failed: CUDA out of memory. Tried to allocate 448.00 MiB.", F.OOM),
    (STAMP + "Watchdog timeout (self.watchdog_timeout=300)", F.WATCHDOG),
    (STAMP + "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", F.WATCHDOG),
    ("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use", F.PORT_CONFLICT),
    ("ValueError: rpc_port 30233 is used by a process already", F.PORT_CONFLICT),
    ("ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 31030): address already in use", F.PORT_CONFLICT),
    ("RuntimeError: The size of tensor a (8640) must match the size of tensor b (5760) at non-singleton dimension 1", F.DRAFT_INCOMPATIBLE),
    ("AttributeError: 'Qwen2ForCausalLM' object has no attribute 'set_embed'", F.DRAFT_INCOMPATIBLE),
    ("ValueError: STANDALONE speculative decoding requires the draft model to share the same vocabulary as the target model, but got target vocab_size=10 and draft vocab_size=9.", F.DRAFT_INCOMPATIBLE),
    ("RuntimeError: Sizes of tensors must match except in dimension 1. Expected size 6 but got size 8 for tensor number 1 in the list.", F.UNSUPPORTED_CONFIG),
    ("ValueError: EAGLE is not supported in decode attention backend torch_native", F.UNSUPPORTED_CONFIG),
    ("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)", F.NCCL_INIT),
    ("[rank3]:[E309 00:57:15 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)", F.NCCL_TIMEOUT),
    ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", F.CRASH_KERNEL),
    ("  what():  CUDA error: device-side assert triggered", F.CRASH_KERNEL),
    ("RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.", F.GPU_MEMORY_NOT_FREE),
    ("RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer.", F.KILLED),
    (STAMP + "Subprocess scheduler_0 (pid=77) crashed with exit code -11. Triggering SIGQUIT for cleanup...", F.CRASH_KERNEL),
    ("AssertionError: tp_size must be divisible by number of nodes", F.CONFIG_REJECTED),
    ("sglang serve: error: argument --tp-size: invalid int value: 'x'", F.BAD_FLAG),
    ("ModuleNotFoundError: No module named 'sglang'", F.BUILD_MISSING),
    ("OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/nope'.", F.MODEL_MISSING),
    ("Failed: Cuda error /x/csrc/custom_all_reduce.cuh:455 'invalid argument'", F.CRASH_KERNEL),
    ("Failed: Cuda error /x/csrc/custom_all_reduce.cuh:455 'out of memory'", F.OOM),
    ("RuntimeError: CUDA error: operation not permitted when stream is capturing", F.CRASH_KERNEL),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", F.UNKNOWN),
    ("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.", F.NCCL_INIT),
    ("AttributeError: 'FooForCausalLM' object has no attribute 'set_eagle3_layers_to_capture'", F.UNSUPPORTED_CONFIG),
    ("zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:30001')", F.PORT_CONFLICT),
    ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 132096, Hardware limit: 101376.", F.UNSUPPORTED_CONFIG),
    ("RuntimeError: [/x/gloo/transport/tcp/pair.cc:525] Read error [127.0.0.1]:1234: Connection reset by peer", F.NCCL_TIMEOUT),
    ("ImportError: libcudart.so.13: cannot open shared object file: No such file or directory", F.BUILD_MISSING),
    ("OSError: Can't load the configuration of '/models/nope'.", F.MODEL_MISSING),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/models/nope/config.json'", F.MODEL_MISSING),
    ("RuntimeError: Out of memory. Try to lower your batch size.", F.KV_POOL_TOO_SMALL),
    ("RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)", F.UNSUPPORTED_CONFIG),
    ("Exception: Capture cuda graph failed: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)", F.UNSUPPORTED_CONFIG),
    ("ValueError: nccl_port at 30233 is not available in 30 seconds. nccl_port at 30233 is not available", F.PORT_CONFLICT),
    (STAMP + "Port is already in use. dist_init_port=30233 port_base=30234 detokenizer_port=30235", F.PORT_CONFLICT),
]  # fmt: skip


@pytest.mark.parametrize(("line", "kind"), REPORTED)
def test_a_reported_line_shows_its_class(line: str, kind: FailureClass) -> None:
    assert fail(line + "\n").kind is kind


@pytest.mark.parametrize(("line", "kind"), REPORTED)
def test_colours_and_a_bar_before_it_hide_no_line(line: str, kind: FailureClass) -> None:
    bar = "Capturing batches (bs=4 avail_mem=1.00 GB):  25%|##  | 1/4 [00:02<00:06,  2.04s/it]"
    coloured = f"{bar}\r\x1b[1;31m{line}\x1b[0m\r\n"
    assert fail(coloured).kind is kind


def test_the_two_memory_failures_ask_for_opposite_remedies() -> None:
    low = fail("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
    high = fail("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB.")
    assert "raise" in low.policy.remedy
    assert "lower" in high.policy.remedy
    assert low.stage is Stage.KV_POOL


def test_out_of_memory_while_capturing_keeps_its_stage() -> None:
    assert fail(REPORTED[3][0]).stage is Stage.GRAPH_CAPTURE
    load = f"{STAMP}Load weight begin. avail mem=90.00 GB\n{REPORTED[2][0]}"
    assert fail(load).stage is Stage.LOAD


@pytest.mark.parametrize(
    "line",
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "
            "capacity of 139.81 GiB of which 95.00 MiB is free. Process 77 has 100.00 GiB memory in "
            "use. Including non-PyTorch memory, this process has 5.00 GiB memory in use."
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "
            "capacity of 139.81 GiB of which 95.00 MiB is free. Process 77 has 100.00 GiB memory in "
            "use. Process 78 has 30.00 GiB memory in use."
        ),
    ],
)
def test_memory_held_by_others_is_not_the_settings_fault(line: str) -> None:
    assert fail(line).kind is F.GPU_MEMORY_NOT_FREE


@pytest.mark.parametrize("line", [REPORTED[0][0], REPORTED[2][0]])
def test_memory_that_the_owner_saw_held_counts_too(line: str) -> None:
    failure = fail(line, held_by=("pid 7 holds 90 GiB of GPU 0",))
    assert failure.kind is F.GPU_MEMORY_NOT_FREE
    assert failure.line.startswith("pid 7 holds 90 GiB of GPU 0; ")


def test_a_target_that_never_fits_is_not_blamed_on_others_where_the_owner_knows_better() -> None:
    line = (
        "ValueError: Loaded weights leave no GPU memory for the KV cache under "
        "--mem-fraction-static=0.85. Raise --mem-fraction-static above 1.000 (minimum viable = 1.0)"
    )
    assert fail(line).kind is F.GPU_MEMORY_NOT_FREE
    assert fail(line, held_by=None).kind is F.GPU_MEMORY_NOT_FREE
    assert fail(line, held_by=()).kind is F.OOM
    assert fail(line, held_by=("GPU 0: 9 GiB held by vim",)).kind is F.GPU_MEMORY_NOT_FREE


def test_a_gpu_that_only_we_fill_is_out_of_memory() -> None:
    line = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "
        "capacity of 139.81 GiB of which 95.00 MiB is free. Including non-PyTorch memory, this "
        "process has 139.00 GiB memory in use."
    )
    assert fail(line).kind is F.OOM
    inside = line.replace("Including non-PyTorch memory, this process", "Process 900")
    assert fail(inside).kind is F.OOM


def test_the_watchdog_is_found_under_its_stack_dumps() -> None:
    stacks = "".join(f"    watchdog_thread (scheduler.py:{n})\n" for n in range(200))
    text = (
        "".join(STAMP.replace("TP4", f"TP{n}") + "Watchdog timeout (self.watchdog_timeout=300)\n"
                for n in range(8))
        + "Pyspy failed to dump PID 171. Error: /bin/dash: 1: py-spy: not found\n"
        + stacks
        + "[2026-03-09 00:57:20] Received sigquit from a child process. It usually means the child "
        "failed.\n"
    )  # fmt: skip
    failure = fail(text, exit_code=-9)
    assert failure.kind is F.WATCHDOG
    assert "watchdog_timeout=300" in failure.line


def test_a_soft_watchdog_kills_nobody() -> None:
    text = (
        "The server is fired up and ready to roll!\n"
        + STAMP
        + "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=True)\n"
    )
    assert read(text).failure(Ending(exit_code=-9, killed_by_us=True)) is None


def test_the_cause_counts_though_another_rank_cried_first() -> None:
    text = (
        "[2026-03-09 00:57:15 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/x/scheduler.py", line 1, in run_scheduler_process\n'
        "    scheduler = Scheduler()\n"
        "RuntimeError: NCCL error: remote process exited or there was a network error\n\n"
        "[2026-03-09 00:57:16] Received sigquit from a child process. It usually means the child "
        "failed.\n"
        "[2026-03-09 00:57:16 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/x/model_runner.py", line 1, in load_model\n'
        "    load()\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    failure = fail(text, exit_code=-9)
    assert (failure.kind, failure.stage) == (F.OOM, Stage.LOAD)


def test_an_import_that_was_tried_and_handled_is_not_the_cause() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/x/utils.py", line 1, in load\n'
        "    import flashinfer\n"
        "ModuleNotFoundError: No module named 'flashinfer'\n"
        + STAMP
        + "Ignore import error when loading sglang.srt.models.a: No module named 'timm'\n"
        + STAMP
        + "Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/x/draft.py", line 1, in load_model\n'
        "    load()\n"
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x7168 and 21504x7168)\n"
    )
    assert fail(text, exit_code=-9).kind is F.DRAFT_INCOMPATIBLE


def test_a_route_that_is_switched_off_for_want_of_a_module_ends_no_server() -> None:
    text = (
        STAMP
        + "OpenAI Responses API (/v1/responses) disabled: OpenAIServingResponses init failed "
        "(ModuleNotFoundError: No module named 'openai_harmony')\n"
    )
    assert fail(text).kind is F.UNKNOWN


def test_out_of_memory_inside_nccl_before_the_load_is_memory_that_others_hold() -> None:
    text = (
        STAMP
        + "Init torch distributed begin.\n"
        + STAMP
        + "Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/x/scheduler.py", line 1, in init_torch_distributed\n'
        "    init()\n"
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled cuda error\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\n"
        "Cuda failure 2 'out of memory'\n"
    )
    assert fail(text, exit_code=-9).kind is F.GPU_MEMORY_NOT_FREE


def test_a_call_that_nccl_never_takes_is_the_settings_fault() -> None:
    text = (
        STAMP + "Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/x/parallel_state.py", line 1, in _all_gather_into_tensor\n'
        "    torch.distributed.all_gather_into_tensor(output, input)\n"
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, invalid usage "
        "(run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
        "Last error:\n"
        "Error : no algorithm/protocol available for function AllGather with datatype ncclBfloat16. "
        "NCCL_ALGO was set to Tree.\n"
    )
    failure = fail(text, exit_code=-9)
    assert (failure.kind, failure.policy.retry) == (F.UNSUPPORTED_CONFIG, False)
    assert failure.line.endswith("NCCL_ALGO was set to Tree.")


def fatal(line: str) -> str:
    return (
        STAMP + "Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/x/scheduler.py", line 1, in event_loop\n'
        f"    step()\n{line}\n"
    )


@pytest.mark.parametrize(
    "line",
    [
        "TypeError: argument of type 'NoneType' is not iterable",
        "TypeError: argument 'ids': StreamInput must be either an integer or a list of integers",
        "ValueError: Argument padding should be False",
    ],
)
def test_an_exception_about_an_argument_is_no_bad_flag(line: str) -> None:
    failure = fail(fatal(line), exit_code=-9)
    assert failure.kind is not F.BAD_FLAG
    assert failure.line == line


@pytest.mark.parametrize(
    "notice",
    [
        "Page first layout is not supported with direct IO backend, switching to page first direct",
        "Disable prefill CUDA graph since 2 conditions hold (unsupported LoRA backend, DP attention)",
    ],
)
def test_what_a_healthy_server_does_without_is_not_the_cause_of_its_end(notice: str) -> None:
    said = STAMP + notice + "\n" + STAMP + "The server is fired up and ready to roll!\n"
    killed = said + STAMP + "Subprocess scheduler_0 (pid=7) crashed with exit code -9.\n"
    assert fail(killed, exit_code=-9).kind is F.KILLED
    line = "torch.distributed.DistBackendError: NCCL error: unhandled system error"
    assert fail(said + fatal(line), exit_code=-9).policy.retry


@pytest.mark.parametrize(
    "line",
    [
        "sweeper.draft_tp.plan.Refused: SWEEPER_DRAFT_TP=1 with --tp-size 16: --nnodes is 2",
        "sweeper draft TP: SGLang 0.5.30 is not one of those it is made for",
        "RuntimeError: sweeper draft TP: rows 0 to 9 of the draft's table cannot be had",
    ],
)
def test_what_the_draft_tp_plugin_refuses_is_not_tried_again(line: str) -> None:
    failure = fail('Traceback (most recent call last):\n  File "x", line 1, in y\n' + line + "\n")
    assert (failure.kind, failure.policy.retry) == (F.UNSUPPORTED_CONFIG, False)


def test_ranks_that_drafted_otherwise_are_no_refusal() -> None:
    line = "sweeper.draft_tp.agreement.Disagreement: sweeper draft TP: in round 7 the ranks [1] drafted"
    assert fail(fatal(line), exit_code=-9).kind is not F.UNSUPPORTED_CONFIG


@pytest.mark.parametrize(
    "what",
    [
        "uncorrectable NVLink error detected during the execution",
        "no CUDA-capable device is detected",
        "invalid device ordinal",
        "unknown error",
        "initialization error",
        "system has unsupported display driver / cuda driver combination",
        "Invalid access of peer GPU memory over nvlink or a hardware error",
    ],
)
def test_what_a_gpu_or_its_driver_does_is_not_the_settings_fault(what: str) -> None:
    failure = fail(fatal(f"torch.AcceleratorError: CUDA error: {what}"), exit_code=-9)
    assert failure.policy.retry


def test_a_port_that_was_waited_for_is_not_the_cause_of_what_came_later() -> None:
    text = (
        STAMP + "port 30233 is in use. Waiting for 15 seconds for nccl_port to be available. "
        "nccl_port is used by a process already. process.name()=' pid=7\n"
        + STAMP
        + "The port 30233 is in use, but we could not find the process that uses it.\n"
        + "AssertionError: tp_size must be divisible by number of nodes\n"
    )
    assert fail(text).kind is F.CONFIG_REJECTED


def test_a_peer_that_lost_its_rank_does_not_hide_why_the_rank_died() -> None:
    fatal = "Scheduler hit an exception: Traceback (most recent call last):\n"
    text = (
        f"[2026-03-09 00:57:15 TP1] {fatal}"
        '  File "/x/a.py", line 1, in event_loop_overlap\n'
        "    recv()\n"
        "RuntimeError: [/x/gloo/pair.cc:525] Read error [127.0.0.1]:1234: Connection reset by peer\n"
        f"[2026-03-09 00:57:16 TP0] {fatal}"
        '  File "/x/a.py", line 1, in event_loop_overlap\n'
        "    run()\n"
        "IndexError: list index out of range\n"
    )
    failure = fail(text, exit_code=-9)
    assert (failure.kind, failure.line) == (F.UNKNOWN, "IndexError: list index out of range")


def test_a_warning_of_unbalanced_memory_explains_the_failure_after_it() -> None:
    text = (
        STAMP + "The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
        "pre_model_load_memory=30.0, local_gpu_memory=138.0\n" + REPORTED[0][0]
    )
    assert fail(text).kind is F.GPU_MEMORY_NOT_FREE


def test_the_same_shapes_are_no_drafts_fault_without_speculation() -> None:
    text = "server_args=ServerArgs(speculative_algorithm=None)\n" + REPORTED[10][0]
    assert fail(text).kind is not F.DRAFT_INCOMPATIBLE


def test_an_unexplained_exit_proves_nothing() -> None:
    text = STAMP + "Received sigquit from a child process. It usually means the child failed.\n"
    assert fail(text, exit_code=-9).kind is F.UNKNOWN
    assert fail("", exit_code=-6).kind is F.UNKNOWN
    assert fail("", exit_code=-9).kind is F.KILLED


def test_a_stranger_on_the_port_is_told_from_a_port_that_was_taken() -> None:
    ready = "INFO:  Started server process [7]\nThe server is fired up and ready to roll!\n"
    assert fail(ready, exit_code=3, foreign_on_port=True).kind is F.FOREIGN_SERVER
    taken = (
        "INFO:     Started server process [7]\n"
        "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 31030): "
        "address already in use\n"
        "INFO:     Waiting for application shutdown.\n"
        "The server is fired up and ready to roll!\n"
    )
    failure = fail(taken, exit_code=3, foreign_on_port=True)
    assert (failure.kind, failure.stage) == (F.PORT_CONFLICT, Stage.WARMUP)


def test_a_served_death_counts_though_the_owner_then_killed_the_rest() -> None:
    text = (
        "The server is fired up and ready to roll!\n"
        + STAMP
        + "Decode batch, #running-req: 1, #token: 9, gen throughput (token/s): 9.0, #queue-req: 0\n"
        + STAMP
        + "Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/x/scheduler.py", line 1, in event_loop_overlap\n'
        "    self.run_batch(batch)\n"
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
    )
    failure = fail(text, exit_code=-9, killed_by_us=True)
    assert (failure.kind, failure.stage) == (F.CRASH_KERNEL, Stage.SERVING)


def test_what_is_said_while_shutting_down_is_no_failure() -> None:
    text = (
        "The server is fired up and ready to roll!\n"
        "[2026-03-09 00:57:15] SIGTERM received. signum=None. Draining requests and shutting down\n"
        "Traceback (most recent call last):\n"
        '  File "/x/y.py", line 1, in z\n'
        "    f()\n"
        "RuntimeError: NCCL error: remote process exited\n"
    )
    assert read(text).failure(Ending(exit_code=-9, killed_by_us=True)) is None


@pytest.mark.parametrize(
    "line",
    [
        "Entering DeepGEMM JIT Pre-Compile session. It may take a long time (typically 10-20 mins)",
        "Entering DeepGEMM JIT Pre-Complie session. And it may takes a long time(Typically 10-20 mins)",
        "DeepGEMM warmup:  12%|#         ",
    ],
)  # fmt: skip
def test_compiling_is_a_stage_of_its_own(line: str) -> None:
    reader = read(f"{STAMP}Load weight begin. avail mem=1 GB\n{line}\r{line}\n")
    assert reader.stage is Stage.JIT
    reader.feed(
        b"Capturing batches (bs=3 avail_mem=68.81 GB):  25%|## | 1/4 [01:08<03:26, 68.86s/it]\n"
    )
    assert (reader.stage, reader.progress) == (Stage.GRAPH_CAPTURE, (1, 4))


def test_the_draft_loads_after_the_target_whatever_the_order_of_ranks() -> None:
    begin = "[2026-03-09 00:57:15 TP{}] Load weight begin. avail mem=1 GB\n"
    reader = read(begin.format(1) + begin.format(0))
    stages = [reader.stage]
    reader.feed(begin.format(0).encode())
    assert [*stages, reader.stage] == [Stage.LOAD, Stage.DRAFT_LOAD]


def test_an_answered_generation_is_readiness_though_the_ready_line_is_late() -> None:
    text = (
        "INFO:     Uvicorn running on http://127.0.0.1:7 (Press CTRL+C to quit)\n"
        'INFO:     127.0.0.1:42772 - "POST /generate HTTP/1.1" 200 OK\n'
        "INFO:     Shutting down\n"
    )
    reader = read(text)
    assert reader.stage is Stage.SHUTDOWN
    assert reader.failure(Ending(exit_code=0, killed_by_us=True)) is None


@pytest.mark.parametrize("before", [True, False], ids=["crashed first", "ended by the server"])
def test_a_child_that_an_orderly_end_kills_did_not_crash(before: bool) -> None:
    """As SGLang 0.5.15 writes it: its own kill may be seen by its watch over the children."""
    died = "Subprocess detokenizer (pid=41) crashed with exit code -9. Triggering SIGQUIT for cleanup...\n"
    text = (
        "The server is fired up and ready to roll!\n"
        "ERROR:    Exception in ASGI application\n"
        "Traceback (most recent call last):\n"
        '  File "/site-packages/fastapi/responses.py", line 96, in render\n'
        "    return orjson.dumps(\n"
        "TypeError: Integer exceeds 64-bit range\n"
        f"{died if before else ''}"
        "INFO:     Shutting down\n"
        "kill_process_tree called: parent_pid=35, include_parent=False, pid=35\n"
        f"{'' if before else died}"
    )
    failure = read(text).failure(Ending(exit_code=-2))
    assert (failure is not None) == before


DECODE_LAYOUTS = [
    (
        (
            "[2025-03-24 02:56:41 TP0] Decode batch. #running-req: 32, #token: 7352, token usage: 0.01, "
            "accept len: 2.54, gen throughput (token/s): 39.33, largest-len: 0, #queue-req: 68, "
        ),
        (32, 68, 2.54, None, 39.33, 0),
    ),
    (
        (
            "2025-12-04 20:35:53 INFO 151972 [scheduler_metrics_mixin.py:287] Decode batch. "
            "#running-req: 48, #token: 3894, token usage: 0.00, accept len: 1.00, accept rate: 0.11, "
            "cuda graph: False, gen throughput (token/s): 5452.63, #queue-req: 0, "
        ),
        (48, 0, 1.00, 0.11, 5452.63, 1),
    ),
    (
        (
            "[2026-04-05 20:02:51] Decode batch, #running-req: 32, #token: 11179, token usage: 0.08, "
            "cuda graph: True, gen throughput (token/s): 1635.11, #queue-req: 0"
        ),
        (32, 0, None, None, 1635.11, 0),
    ),
    (
        (
            "[2026-04-05 20:02:51 DP0 TP0] Decode batch [40], #running-req: 5, #full token: 1, full "
            "token usage: 0.10, #swa token: 4, swa token usage: 0.20, cpu graph: False, gen throughput "
            "(token/s): 12.0, #queue-req: 0"
        ),
        (5, 0, None, None, 12.0, 1),
    ),
]


@pytest.mark.parametrize(("line", "values"), DECODE_LAYOUTS)
def test_every_layout_of_a_decode_line_is_read(
    line: str, values: tuple[int, int, float | None, float | None, float, int]
) -> None:
    window = read(line + "\n").decode
    assert values == (
        window.running,
        window.queued,
        window.accept_length,
        window.accept_rate,
        window.gen_tok_s,
        window.without_graph,
    )
    assert window.token_usage is not None


def test_retractions_of_every_layout_are_counted_and_are_no_failure() -> None:
    text = (
        "The server is fired up and ready to roll!\n"
        "[2026-09-13 16:06:07] KV cache pool is full. Retract requests. #retracted_reqs: 1, "
        "#new_tokens_gained: 646, #new_token_ratio: 0.0980 -> 0.3487\n"
        f"{DECODE_LAYOUTS[1][0]}\n{DECODE_LAYOUTS[2][0]}\n"
        "[2026-09-13 16:06:08] KV cache pool is full. Retract requests. #retracted_reqs: 2, "
        "#new_token_ratio: 0.9998 -> 1.0000\n"
        "[2026-09-13 16:06:09] Decode out of memory happened. #retracted_reqs: 3, "
        "#new_token_ratio: 0.9998 -> 1.0000\n"
    )
    reader = read(text)
    assert reader.retractions == 6
    assert reader.decode.share_without_graph == 0.5
    assert reader.failure(Ending(exit_code=0, killed_by_us=True)) is None


def test_a_draft_of_which_nothing_is_accepted_is_flagged() -> None:
    line = DECODE_LAYOUTS[1][0] + "\n"
    assert not read(line * 4).decode.is_spec_ineffective
    assert read(line * 5).decode.is_spec_ineffective


def test_settings_that_the_server_changed_are_noticed_once() -> None:
    lines = (
        (
            "Max running requests is reset to 48 for speculative decoding. You can override this by "
            "explicitly setting --max-running-requests."
        ),
        (
            "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when "
            "speculative_eagle_topk == 1"
        ),
        "Mixed chunked prefill is disabled because of using dflash speculative decoding.",
    )
    assert read("".join(f"{STAMP}{line}\n" for line in lines * 3)).notices == lines


def test_a_flood_of_notes_and_a_line_without_end_hide_nothing() -> None:
    reader = SGLangLogReader()
    note = b"host:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM error 0 timeout\n"
    for _ in range(100):
        reader.feed(note * 1000)
    reader.feed(b"x" * 1_000_000 + b"\n")
    reader.feed(b"RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO)\n")
    reader.feed(b"y" * 1_000_000)
    failure = reader.failure(Ending(exit_code=1))
    assert failure is not None
    assert failure.kind is F.NCCL_INIT
    assert len(reader._cutter._pending) < 64_000


def test_a_secret_in_the_line_is_hidden() -> None:
    line = "ValueError: CUDA out of memory with --api-key hunter2"
    assert "hunter2" not in fail(line).line


def test_reading_a_verdict_leaves_the_reader_as_it_was() -> None:
    reader = read("RuntimeError: Not enough mem")
    assert reader.failure(Ending(exit_code=None)) is None
    reader.feed(b"ory. Please try to increase --mem-fraction-static.")
    failure = reader.failure(Ending(exit_code=1))
    assert failure is not None
    assert failure.kind is F.KV_POOL_TOO_SMALL
