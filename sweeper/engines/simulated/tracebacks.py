"""The text of each failure, as SGLang logs it: frames of the failing call, then the cause."""

from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.engines.simulated.calibrations import Calibration

Frame = tuple[str, int, str, str]

_RUN: Frame = ("managers/scheduler.py", 4931, "run_scheduler_process", "scheduler = Scheduler(")
_INIT: Frame = ("managers/scheduler.py", 498, "__init__", "self.init_model_worker()")
_DRAFT: tuple[Frame, ...] = (
    _RUN,
    _INIT,
    ("managers/scheduler.py", 977, "init_model_worker", "self.maybe_init_draft_worker()"),
    ("speculative/eagle_worker_v2.py", 165, "__init__", "self.draft_worker = TpModelWorker("),
)
_DIST: tuple[Frame, ...] = (
    _RUN,
    _INIT,
    ("managers/tp_worker.py", 451, "_init_model_runner", "self._model_runner = ModelRunner("),
    ("distributed/parallel_state.py", 1781, "init_distributed_environment",
     "torch.distributed.init_process_group("),
)  # fmt: skip
_LOAD: tuple[Frame, ...] = (
    _RUN,
    _INIT,
    ("managers/tp_worker.py", 451, "_init_model_runner", "self._model_runner = ModelRunner("),
    ("model_executor/model_runner.py", 597, "initialize", "self.load_model()"),
    ("model_loader/loader.py", 816, "load_model", "self.load_weights_and_postprocess("),
)
_POOL: tuple[Frame, ...] = (
    _RUN,
    _INIT,
    ("managers/scheduler.py", 981, "init_model_worker", "self.init_memory_pools()"),
    ("mem_cache/kv_cache_configurator.py", 247, "configure",
     "config = self._resolve_memory_pool_config(pre_model_load_memory)"),
)  # fmt: skip
_GRAPH: tuple[Frame, ...] = (
    _RUN,
    _INIT,
    ("managers/scheduler.py", 985, "init_model_worker", "self.init_all_cuda_graphs()"),
    ("speculative/eagle_worker_v2.py", 237, "init_cuda_graphs", "self._capture_cuda_graphs()"),
)
_SERVE: tuple[Frame, ...] = (
    ("managers/scheduler.py", 4965, "run_scheduler_process", "scheduler.run_event_loop()"),
    ("managers/scheduler.py", 1532, "event_loop_overlap", "batch_result = self.run_batch(batch)"),
    ("speculative/eagle_worker_v2.py", 611, "forward_batch_generation", "self.verify(batch)"),
)

_OOM = (
    "CUDA out of memory. Tried to allocate {size} MiB. GPU 0 has a total capacity of {gpu_gb} GiB "
    "of which {free} MiB is free. Including non-PyTorch memory, this process has {used} GiB "
    "memory in use."
)
_CAPTURE_HINT = (
    "\nPossible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
    "2. set --cuda-graph-max-bs-decode to a smaller value (e.g., 16)\n"
    "3. disable CUDA graph by --disable-cuda-graph. (Not recommended. Huge performance loss)\n"
    "Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """What a scheduler dies of.

    Attributes:
        cause: The last line of its traceback.
        frames: The calls above it.
    """

    cause: str
    frames: tuple[Frame, ...]

    def text(self) -> str:
        """Return the log entry from `Scheduler hit an exception` on."""
        return f"Scheduler hit an exception: {traceback_text(self.frames, self.cause)}"


def traceback_text(frames: Sequence[Frame], cause: str) -> str:
    """Return a Python traceback in SGLang's files."""
    lines = ["Traceback (most recent call last):"]
    for path, number, function, source in frames:
        lines.append(f'  File "/site-packages/sglang/srt/{path}", line {number}, in {function}')
        lines.append(f"    {source}")
    return "\n".join([*lines, cause, ""])


def rejection_text(error: str) -> str:
    """Return the parent's traceback for a refused combination of flags."""
    frames: tuple[Frame, ...] = (
        ("entrypoints/engine.py", 1165, "_launch_subprocesses", "server_args.check_server_args()"),
        ("server_args.py", 3592, "resolve_once", "handle_speculative_decoding(self)"),
    )
    return traceback_text(frames, error)


def missing_model(path: str) -> str:
    """Return the traceback for a path that is neither a folder nor a repository's name."""
    frames: tuple[Frame, ...] = (
        ("utils/hf_transformers/config.py", 252, "get_config", "config = parser.parse("),
    )
    return traceback_text(
        frames,
        f"OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{path}'. "
        "Use `repo_type` argument if needed.",
    )


def oom(cal: Calibration, size_mb: int) -> str:
    """Return PyTorch's message of a failed allocation."""
    return _OOM.format(
        size=f"{size_mb}.00", gpu_gb=cal.gpu_gb, free="61.19", used=cal.gpu_gb - 0.1
    )


def deaths(cal: Calibration, mem_fraction: float) -> dict[str, Death]:
    """Return, by the fault's name, what each scheduler exception says."""
    return {
        "nccl_init": Death(
            cause="torch.distributed.DistBackendError: NCCL error in: "
            "../torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled system error (run with "
            "NCCL_DEBUG=INFO for details), NCCL version 2.28.9\n"
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed "
            "or device error.",
            frames=_DIST,
        ),
        "oom_load": Death(cause=f"torch.OutOfMemoryError: {oom(cal, 896)}", frames=_LOAD),
        "memory_held": Death(
            cause="ValueError: Loaded weights leave no GPU memory for the KV cache under "
            f"--mem-fraction-static={mem_fraction}. Raise --mem-fraction-static above 1.000 "
            "(minimum viable = 1 - available/pre = 0.9991). If using speculative decoding, draft "
            "weights are now counted.",
            frames=_POOL,
        ),
        "kv_pool": Death(
            cause="RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
            f"Current value: mem_fraction_static={mem_fraction}",
            frames=_POOL,
        ),
        "draft_incompatible": Death(
            cause="AssertionError: Attempted to load weight (torch.Size([7168, 21504])) into "
            "parameter (torch.Size([7168, 7168]))",
            frames=(
                *_DRAFT,
                (
                    "models/llama_eagle3.py",
                    367,
                    "load_weights",
                    "weight_loader(param, loaded_weight)",
                ),
            ),
        ),
        "draft_missing": Death(
            cause=f"AttributeError: '{cal.architecture}' object has no attribute 'set_embed'",
            frames=_DRAFT,
        ),
        "unsupported_config": Death(
            cause="RuntimeError: Sizes of tensors must match except in dimension 1. Expected size "
            "6 but got size 8 for tensor number 1 in the list.",
            frames=_GRAPH,
        ),
        "build_missing": Death(
            cause="ModuleNotFoundError: No module named 'deep_gemm'",
            frames=(
                *_GRAPH,
                ("layers/attention/dsa_backend.py", 90, "<module>", "import deep_gemm"),
            ),
        ),
        "oom_graph": Death(
            cause=f"Exception: Capture cuda graph failed: {oom(cal, 448)}{_CAPTURE_HINT}",
            frames=_GRAPH,
        ),
        "draft_dies_at_first_request": Death(
            cause="RuntimeError: The size of tensor a (8640) must match the size of tensor b "
            "(5760) at non-singleton dimension 1",
            frames=_SERVE,
        ),
        "oom_serving": Death(cause=f"torch.OutOfMemoryError: {oom(cal, 2048)}", frames=_SERVE),
        "crash_kernel": Death(
            cause="torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
            "CUDA kernel errors might be asynchronously reported at some other API call, so the "
            "stacktrace below might be incorrect.",
            frames=_SERVE,
        ),
    }


def tree_too_large(*, captured: bool) -> Death:
    """Return what a draft tree with more nodes than candidates dies of.

    Args:
        captured: Whether it shows at graph capture, or without graphs at the first request.
    """
    error = "selected index k out of range"
    return Death(
        cause=f"Exception: Capture cuda graph failed: {error}{_CAPTURE_HINT}"
        if captured
        else f"RuntimeError: {error}",
        frames=(
            *(_GRAPH if captured else _SERVE),
            (
                "speculative/eagle_utils.py",
                104,
                "organize_draft_results",
                "top_scores = torch.topk(score_list, num_draft_token - 1, dim=-1)",
            ),
        ),
    )


def tree_too_small(steps: int, tokens: int) -> Death:
    """Return what a draft tree that cannot hold a path of all steps dies of, at the warm-up."""
    return Death(
        cause=f"RuntimeError: The expanded size of the tensor ({tokens}) must match the existing "
        f"size ({steps + 1}) at non-singleton dimension 1.  Target sizes: [1, {tokens}].  "
        f"Tensor sizes: [{steps + 1}]",
        frames=(
            *_SERVE,
            (
                "speculative/eagle_worker_common.py",
                457,
                "_compact_accept_to_front",
                "out.view(bs, nd, *x.shape[1:])[:, :s1] = gathered.view(bs, s1, *x.shape[1:])",
            ),
        ),
    )


def backend_cannot_draft(backend: str) -> Death:
    """Return what a draft of several steps on an unfit attention backend dies of."""
    return Death(
        cause=f"ValueError: EAGLE is not supported in decode attention backend {backend}",
        frames=_DRAFT,
    )


def port_taken(port: int) -> Death:
    """Return what a taken rendezvous port makes of the start."""
    return Death(
        cause="torch.distributed.DistNetworkError: The server socket has failed to listen on any "
        f"local network address. port: {port}, useIpv6: false, code: -98, name: EADDRINUSE, "
        "message: address already in use",
        frames=_DIST,
    )


def weights_too_large(mem_fraction: float, needed: float) -> Death:
    """Return what a share of memory below the weights' size dies of."""
    return Death(
        cause="ValueError: Loaded weights leave no GPU memory for the KV cache under "
        f"--mem-fraction-static={mem_fraction}. Raise --mem-fraction-static above {needed:.3f} "
        f"(minimum viable = 1 - available/pre = {needed:.4f}). If using speculative decoding, "
        "draft weights are now counted.",
        frames=_POOL,
    )


NCCL_TIMEOUT = (
    "[rank0]:[E1129 16:18:58.158921701 ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=48211, OpType=ALLREDUCE, NumelIn=21504, "
    "NumelOut=21504, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
)

#: The end of a polite stop by SIGINT; no failure.
INTERRUPTED = """\
Traceback (most recent call last):
  File "/site-packages/sglang/srt/entrypoints/http_server.py", line 2781, in launch_server
    uvicorn.run(
  File "/site-packages/uvicorn/_compat.py", line 30, in asyncio_run
    return runner.run(main)
  File "/usr/lib/python3.11/asyncio/runners.py", line 123, in run
    raise KeyboardInterrupt()
KeyboardInterrupt
"""
