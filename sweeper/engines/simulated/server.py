"""What the HTTP routes share: one launch, ready or not yet."""

import asyncio
import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from sweeper.clock import Clock
from sweeper.engines.simulated import cost
from sweeper.engines.simulated.faults import ActiveFaults
from sweeper.engines.simulated.flags import VERSION
from sweeper.engines.simulated.job import (
    Job,
    count_tokens,
    natural_length,
    prompt_kind,
    words_of,
)
from sweeper.engines.simulated.log import Log
from sweeper.engines.simulated.memory import MemoryPlan
from sweeper.engines.simulated.noise import draws, prompt_exponent, request_factor
from sweeper.engines.simulated.resolve import Resolved
from sweeper.engines.simulated.scheduler import Scheduler
from sweeper.engines.simulated.settings import Settings


class BadRequest(Exception):
    """A request that SGLang answers with 400 and this text."""


class Malformed(BadRequest):
    """A body that is not JSON or lacks a field: refused before the route looks at it."""


@dataclass(slots=True, kw_only=True)
class Server:
    """One launched server.

    Attributes:
        settings: Its own environment.
        resolved: Its flags.
        setting: What of them the speed depends on.
        memory: Where the memory goes.
        faults: Its faults.
        clock: Engine time.
        log: Its log.
        scheduler: Runs the requests.
        rng: Chance of this launch.
        launch_command: How it was started.
        started_s: Engine time of the start.
        startup: Engine seconds by stage, as `/server_info` names them.
        status: "starting", "up", "unhealthy" or "draining".
        loaded: Set when the load is done; routes that need the scheduler wait for it.
        received: Requests from outside so far.
        streams: Streams so far.
    """

    settings: Settings
    resolved: Resolved
    setting: cost.Setting
    memory: MemoryPlan
    faults: ActiveFaults
    clock: Clock
    log: Log
    scheduler: Scheduler
    rng: random.Random
    launch_command: str
    started_s: float
    startup: dict[str, Any] = field(default_factory=dict)
    status: str = "starting"
    loaded: asyncio.Event = field(default_factory=asyncio.Event)
    received: int = 0
    streams: int = 0

    @property
    def flags(self) -> Mapping[str, Any]:
        """Effective flags."""
        return self.resolved.flags

    @property
    def context_len(self) -> int:
        """Longest request in tokens."""
        return int(self.flags["context_length"] or self.settings.calibration.context_len)

    def job(
        self,
        prompt: str,
        *,
        max_tokens: int | None,
        ignore_eos: bool = True,
        temperature: float = 0.0,
        prompt_tokens: int | None = None,
        rid: str | None = None,
        internal: bool = False,
    ) -> Job:
        """Return a new job.

        Args:
            prompt: Its text.
            max_tokens: Most tokens of the answer; None is the rest of the context.
            ignore_eos: Whether the answer goes on where it would end by itself.
            temperature: 0 makes answer and acceptance depend on the prompt alone.
            prompt_tokens: Length of the prompt where it came as token ids.
            rid: The id that the client gave it.
            internal: Whether it is a warm-up or a health check.

        Raises:
            BadRequest: It does not fit into the context.
        """
        cal, seed, noise = self.settings.calibration, self.settings.seed, self.settings.noise
        length = prompt_tokens or count_tokens(prompt)
        limit = self.context_len - length if max_tokens is None else max_tokens
        if length + limit > self.context_len or limit < 1:
            raise BadRequest(
                "Requested token count exceeds the model's maximum context length of "
                f"{self.context_len} tokens. You requested a total of {length + limit} tokens: "
                f"{length} tokens from the input messages and {limit} tokens for the completion. "
                "Please reduce the number of tokens in the input messages or the completion to "
                "fit within the limit."
            )
        natural = natural_length(seed, prompt)
        kind = prompt_kind(prompt)
        exponent = prompt_exponent(seed, prompt, noise)
        salt = "" if temperature == 0 else f"{self.rng.random()} "
        if not internal:
            self.received += 1
        return Job(
            rid=rid or uuid.UUID(int=self.rng.getrandbits(128)).hex,
            prompt=prompt,
            kind=kind,
            prompt_tokens=length,
            limit=limit if ignore_eos else min(limit, natural),
            ends_naturally=not ignore_eos and natural <= limit,
            words=words_of(seed, f"{salt}{prompt}", degenerate="degenerate" in self.faults),
            draws=draws(f"{seed} {salt}{prompt}", noise),
            chances=cost.survival(cal, self.setting, kind, exponent),
            factor=request_factor(self.rng, noise),
            arrived_s=self.clock.now_s(),
            internal=internal,
            number=0 if internal else self.received,
            histogram=[0] * (1 + min(self.setting.steps, max(self.setting.draft_tokens - 1, 0))),
        )

    def meta_info(self, job: Job) -> dict[str, object]:
        """Return SGLang's `meta_info`; at the end with timings and acceptance."""
        meta: dict[str, object] = {
            "id": job.rid,
            "finish_reason": finish_reason(job),
            "prompt_tokens": job.prompt_tokens,
            "weight_version": self.flags["weight_version"],
            "completion_tokens": job.produced,
            "cached_tokens": job.cached_tokens,
        }
        if job.finish is not None and job.finished_s is not None:
            meta["e2e_latency"] = job.finished_s - job.arrived_s
            meta |= self.spec_details(job)
        return meta

    def spec_details(self, job: Job) -> dict[str, object]:
        """Return a finished job's acceptance; empty without speculation."""
        if self.setting.draft is None or not job.verify_ct:
            return {}
        proposed = job.verify_ct * (self.setting.draft_tokens - 1)
        return {
            "spec_accept_rate": job.correct_drafts / proposed,
            "spec_accept_length": job.produced / job.verify_ct,
            "spec_num_correct_drafts": job.correct_drafts,
            "spec_num_proposed_drafts": proposed,
            "spec_verify_ct": job.verify_ct,
            "spec_correct_drafts_histogram": job.histogram,
        }

    def info(self) -> dict[str, Any]:
        """Return `/server_info`."""
        flags = {k: v for k, v in self.flags.items() if k not in ("config", "help")}
        scheduler = self.scheduler
        state: dict[str, Any] = {
            **flags,
            "last_gen_throughput": scheduler.totals.throughput,
            "effective_max_running_requests_per_dp": scheduler.max_running,
            "memory_usage": {
                "weight": round(self.memory.weight_gb + self.memory.draft_gb, 2),
                "kvcache": round(self.memory.kv_gb, 2),
                "token_capacity": self.memory.kv_tokens,
                "graph": {"decode": round(self.memory.graph_gb, 2)},
            },
            "startup_time": self.startup,
            "world_size": flags["tp_size"],
            "decode_cuda_graph_bs": list(self.resolved.graph_sizes),
        }
        if scheduler.counters.accept_length is not None:
            state["avg_spec_accept_length"] = scheduler.counters.accept_length
        draft_tp = {"draft_tp_size": self.setting.draft_tp or flags["tp_size"]}
        return {
            **flags,
            "status": "ready",
            "max_total_num_tokens": self.memory.kv_tokens,
            "max_req_input_len": self.context_len - 6,
            "version": VERSION,
            "kv_events": None,
            "internal_states": [state],
            "launch_command": self.launch_command,
            "startup_time": self.startup,
            "frontend": "fastapi",
            # What Sweeper's draft-TP plugin reports of a real server.
            **(draft_tp if self.setting.draft is not None else {}),
            "simulated": True,
            "time_scale": self.clock.scale,
            "calibration": self.settings.calibration.name,
        }


def finish_reason(job: Job) -> dict[str, object] | None:
    """Return `finish_reason` as `/generate` words it; None while the job runs."""
    if job.finish is None:
        return None
    if job.finish == "length":
        return {"type": "length", "length": job.limit}
    if job.finish == "stop":
        return {"type": "stop", "matched": 163586}
    message = "Aborted" if job.produced else "Abort before prefill"
    return {"type": "abort", "message": message, "status_code": None, "err_type": None}


SERVER = web.AppKey("server", Server)
