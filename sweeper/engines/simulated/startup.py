"""A start, stage by stage, with SGLang's log lines; ends where uvicorn would listen.

arguments -> imports -> ranks meet -> target weights -> draft weights -> KV pool
  -> (kernels compile) -> CUDA graphs: verify, draft decode, draft extend
"""

import asyncio
import socket
from collections.abc import Mapping
from contextlib import closing

from sweeper.engines.simulated import tracebacks
from sweeper.engines.simulated.log import bar
from sweeper.engines.simulated.server import Server
from sweeper.engines.simulated.setting import DRAFT_BACKENDS, tree_is_too_large
from sweeper.engines.simulated.tracebacks import Death

#: Share of `SWEEPER_SIM_START_S` that each stage takes. Of a start of ten minutes with a model
#: of half a terabyte most is the reading of weights; graph capture follows (guess, after the
#: proportions of the logs).
SHARES: Mapping[str, float] = {
    "import": 0.06,
    "dist_init": 0.015,
    "load": 0.62,
    "draft_load": 0.03,
    "kv_pool": 0.005,
    "decode": 0.11,
    "target_verify": 0.11,
    "draft_decode": 0.06,
    "draft_extend": 0.05,
    "warmup": 0.04,
}
#: Real seconds of the children's imports at most; SGLang's take 10 to 20 engine seconds.
IMPORT_S = 15.0
_SHARDS = 64


class SchedulerDied(Exception):
    """A scheduler raised while starting.

    Args:
        death: What it says.
    """

    def __init__(self, death: Death) -> None:
        super().__init__(death.cause)
        self.death = death


class Startup:
    """Runs the stages of one start.

    Args:
        server: The server that starts.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.log = server.log
        self.deaths = tracebacks.deaths(
            server.settings.calibration, server.flags["mem_fraction_static"]
        )
        self.seconds: dict[str, float] = dict.fromkeys(SHARES, 0.0)

    async def run(self) -> None:
        """Go through all stages.

        Raises:
            SchedulerDied: A fault struck, or the flags cannot work.
        """
        await self._wait("import")
        await self._meet()
        await self._load()
        await self._load_draft()
        self._allocate()
        await self._compile()
        await self._capture()
        self._ready()

    async def _wait(self, stage: str, share: float = 1.0) -> None:
        seconds = self.server.settings.start_s * SHARES[stage] * share
        self.seconds[stage] += seconds
        if seconds > 0:
            await asyncio.sleep(self.server.clock.real_s(seconds))

    def _strike(self, fault: str) -> None:
        if fault in self.server.faults:
            raise SchedulerDied(self.deaths[fault])

    async def _meet(self) -> None:
        self.log.each_rank("Init parallel begin.")
        if "nccl_hang" in self.server.faults:
            await asyncio.Event().wait()
        if (port := self.server.flags["nccl_port"]) and not _is_free(port):
            raise SchedulerDied(tracebacks.port_taken(port))
        await self._wait("dist_init")
        self._strike("nccl_init")
        if self.server.flags["tp_size"] > 1:
            self.log.line("sglang is using nccl==2.28.9", rank=0)
        self.log.each_rank(
            f"Init parallel ends. elapsed={self.seconds['dist_init']:.2f} s, mem usage=0.97 GB"
        )

    async def _load(self) -> None:
        memory, cal = self.server.memory, self.server.settings.calibration
        held = "memory_held" in self.server.faults
        free = min(memory.free_gb, 1.3 * memory.weight_gb) if held else memory.free_gb
        self.log.each_rank(f"Load weight begin. avail mem={free:.2f} GB")
        for done in range(_SHARDS + 1):
            self._bar("Multi-thread loading shards", "load", done, _SHARDS)
            if done == _SHARDS // 3:
                self._strike("oom_load")
                if "hang_start" in self.server.faults:
                    await asyncio.Event().wait()
            if done < _SHARDS:
                await self._wait("load", 1 / _SHARDS)
        self.log.raw("\n")
        self.log.each_rank(
            f"Load weight end. elapsed={self.seconds['load']:.2f} s, type={cal.architecture}, "
            f"avail mem={free - memory.weight_gb:.2f} GB, mem usage={memory.weight_gb:.2f} GB."
        )

    async def _load_draft(self) -> None:
        server, memory = self.server, self.server.memory
        flags = server.flags
        if not memory.draft_gb:
            return
        free = memory.free_gb - memory.weight_gb
        self.log.each_rank("SPECULATIVE_MOE_RUNNER_BACKEND is not initialized, using auto backend")
        self.log.each_rank(f"Load weight begin. avail mem={free:.2f} GB")
        if flags["speculative_draft_model_path"] is None:
            raise SchedulerDied(self.deaths["draft_missing"])
        self._strike("draft_incompatible")
        await self._wait("draft_load")
        self._bar("Multi-thread loading shards", "draft_load", 1, 1)
        self.log.raw("\n")
        self.log.each_rank(
            f"Load weight end. elapsed={self.seconds['draft_load']:.2f} s, "
            f"type={server.settings.calibration.draft_architecture}, "
            f"avail mem={free - memory.draft_gb:.2f} GB, mem usage={memory.draft_gb:.2f} GB."
        )
        backend = (
            flags["speculative_draft_attention_backend"]
            or flags["decode_attention_backend"]
            or flags["attention_backend"]
        )
        if flags["speculative_num_steps"] >= 2 and backend not in DRAFT_BACKENDS:
            raise SchedulerDied(tracebacks.backend_cannot_draft(backend))

    def _allocate(self) -> None:
        memory, flags = self.server.memory, self.server.flags
        self._strike("memory_held")
        self._strike("kv_pool")
        if memory.kv_tokens <= 0:
            raise SchedulerDied(
                tracebacks.weights_too_large(flags["mem_fraction_static"], memory.needed_fraction)
            )
        half = memory.kv_gb / 2
        self.log.each_rank(
            f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {memory.kv_tokens}, "
            f"K size: {half:.2f} GB, V size: {half:.2f} GB"
        )
        self.log.each_rank(f"Memory pool end. avail mem={memory.rest_gb:.2f} GB")
        self._strike("unsupported_config")

    async def _compile(self) -> None:
        server = self.server
        if "slow_jit" not in server.faults:
            return
        seconds, parts = server.faults.argument("slow_jit", 900.0), 90
        self.log.line(
            "Entering DeepGEMM JIT Pre-Compile session. It may take a long time (typically 10-20 "
            "mins) if you have not run `sglang.compile_deep_gemm`.",
            rank=0,
        )
        for done in range(parts + 1):
            self.log.raw(bar("DeepGEMM warmup", done, parts, seconds * done / parts))
            if done < parts:
                await asyncio.sleep(server.clock.real_s(seconds / parts))
        self.log.raw("\n")

    async def _capture(self) -> None:
        server, flags = self.server, self.server.flags
        if "build_missing" in server.faults:
            self._strike("build_missing")
        topk, tokens = server.setting.topk, server.setting.draft_tokens
        too_large = tree_is_too_large(server.resolved, server.setting)
        if not server.resolved.decode_graphs:
            self.log.each_rank(
                "Disable decode CUDA graph because cuda_graph_config resolved "
                "decode.backend='disabled'."
            )
            if too_large:
                raise SchedulerDied(tracebacks.tree_too_large(captured=False))
            return
        kinds = [("target verify", "target_verify", tokens)] if server.resolved.speculating else []
        if server.memory.draft_gb:
            kinds += [
                ("draft decode", "draft_decode", topk),
                ("draft extend", "draft_extend", tokens),
            ]
        kinds = kinds or [("target decode", "decode", 1)]
        left = server.memory.rest_gb
        for label, stage, width in kinds:
            sizes = server.resolved.graph_sizes
            used = server.memory.graph_gb / len(kinds)
            self.log.each_rank(
                f"Capture {label} CUDA graph begin. "
                f"backend={flags['cuda_graph_config']['decode']['backend']}, "
                f"num_tokens_per_req={width}, bs={list(sizes)}, avail mem={left:.2f} GB"
            )
            for done in range(len(sizes) + 1):
                size = sizes[-1 - min(done, len(sizes) - 1)]
                self._bar(
                    f"Capturing batches (bs={size} avail_mem={left:.2f} GB)",
                    stage, done, len(sizes),
                )  # fmt: skip
                if done == len(sizes) // 2:
                    self._strike("oom_graph")
                    if server.memory.rest_gb < server.memory.graph_gb:
                        raise SchedulerDied(self.deaths["oom_graph"])
                    if too_large:
                        raise SchedulerDied(tracebacks.tree_too_large(captured=True))
                if done < len(sizes):
                    await self._wait(stage, 1 / len(sizes))
            left -= used
            self.log.raw("\n")
            self.log.each_rank(
                f"Capture {label} CUDA graph end. elapsed={self.seconds[stage]:.2f} s, "
                f"mem usage={used:.2f} GB, avail mem={left:.2f} GB."
            )

    def _ready(self) -> None:
        server, flags, s = self.server, self.server.flags, self.seconds
        self.log.line(
            f"max_total_num_tokens={server.memory.kv_tokens}, "
            f"chunked_prefill_size={flags['chunked_prefill_size']}, "
            f"max_prefill_tokens={flags['max_prefill_tokens']}, "
            f"max_running_requests={server.scheduler.max_running}, "
            f"context_len={server.context_len}, "
            f"available_gpu_mem={server.memory.rest_gb - server.memory.graph_gb:.2f} GB",
            rank=0,
        )
        total = sum(s.values()) - s["import"]
        self.server.startup |= {
            "load_weight": s["load"] + s["draft_load"],
            "kv_cache_allocation": s["kv_pool"],
            "scheduler_e2e": total,
            "cuda_graph": {
                "prefill": 0.0,
                "decode": s["decode"],
                "target_verify": s["target_verify"],
                "draft_prefill": 0.0,
                "draft_decode": s["draft_decode"],
                "draft_extend": s["draft_extend"],
            },
        }
        graphs = ", ".join(f"{k}={v:.2f}" for k, v in self.server.startup["cuda_graph"].items())
        self.log.line(
            f"Engine startup timings (s): load_weight={s['load'] + s['draft_load']:.2f}, "
            f"kv_cache_allocation={s['kv_pool']:.2f}, scheduler_e2e={total:.2f}, "
            f"cuda_graph={{{graphs}}}, tokenizer_e2e={total + s['import']:.2f}"
        )

    def _bar(self, label: str, stage: str, done: int, total: int) -> None:
        self.log.raw(bar(label, done, total, self.seconds[stage]))


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
