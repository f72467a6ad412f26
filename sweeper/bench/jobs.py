"""What the measuring side and the streaming client say to each other, one JSON object a line.

measure --Job--> client        on its stdin
client --progress events, then Window or refusal--> measure     on its stdout
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from sweeper.bench.streams import StreamFault
from sweeper.bench.workload import Prompt
from sweeper.records import RequestTiming


class Refused(Exception):
    """The server did not do what a pass needs before it can be sent.

    Attributes:
        stalled: Whether it gave no answer at all, though it took the connection.
    """

    def __init__(self, said: str, *, stalled: bool = False) -> None:
        super().__init__(said)
        self.stalled = stalled


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One window: flush, then send the prompts, and stamp what comes.

    Attributes:
        url: The server, "http://127.0.0.1:30000".
        model: The model's name on the OpenAI routes.
        workload: The workload's name, written into each timing.
        repeat: Number of the pass; with `duration_s` the number of the first one.
        prompts: One pass, in order.
        salt: Makes the prompts of this launch and workload unlike all others.
        route: "generate", "completions" or "chat".
        chat_template: "auto", "always" or "never": whether the plain routes send prompts in the
            server's chat template.
        concurrency: Streams kept open; None with `request_rate`.
        request_rate: Requests an engine second; None with `concurrency`.
        arrivals_s: Engine seconds at which each prompt is sent; None without a trace.
        ramp_s: Engine seconds over which the load grows to its full height.
        seed: Seed of the arrivals of an open loop.
        duration_s: How long passes follow each other, in engine seconds; None for one pass.
        max_tokens: Output tokens asked of each request.
        temperature: 0 is greedy.
        ignore_eos: Whether the answer goes on to `max_tokens`.
        time_scale: Engine seconds in a real second.
        progress_s: Longest wait for a chunk, in engine seconds.
        probe_s: Longest wait for a flush, in engine seconds.
        max_failed: Failed requests after which the window is given up; None for no such limit.
        flush: "must" empties the server's cache before; "try" does where the server can;
            "no" does not.
        api_key: Sent as a bearer token; None for none.
    """

    url: str
    model: str
    workload: str
    repeat: int = 0
    prompts: tuple[Prompt, ...]
    salt: str = ""
    route: str = "generate"
    chat_template: str = "never"
    concurrency: int | None = 1
    request_rate: float | None = None
    arrivals_s: tuple[float, ...] | None = None
    ramp_s: float = 0.0
    seed: int = 0
    duration_s: float | None = None
    max_tokens: int = 500
    temperature: float = 0.0
    ignore_eos: bool = True
    time_scale: float = 1.0
    progress_s: float = 120.0
    probe_s: float = 30.0
    max_failed: int | None = None
    flush: str = "must"
    api_key: str | None = None

    def __repr__(self) -> str:
        return f"Job({self.workload!r}, repeat={self.repeat}, {len(self.prompts)} prompts)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a job brought.

    Attributes:
        timings: All requests, in the order of their sending.
        faults: For each timing what broke it, None for a good one.
        drafted_tokens: Draft tokens proposed over good requests; None if one does not say.
        origin_ns: Engine time that the stamps count from.
        cpu_s: CPU time of the client while requests were open, in real seconds.
        wall_s: Real seconds while requests were open.
        flushed: Whether the server's cache was emptied before.
        given_up: Whether the window ended early, for failures or because nothing came any more.
        chat_template: Whose chat template the prompts stood in, as in `records.Measurement`.
        counted_steps: Verify steps by the server's counters, all ranks; None if it tells none or
            if the answers tell more.
        counted_tokens: Tokens that came of these, likewise.
    """

    timings: tuple[RequestTiming, ...]
    faults: tuple[StreamFault | None, ...]
    drafted_tokens: int | None = None
    origin_ns: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    flushed: bool = False
    given_up: bool = False
    chat_template: str = "none"
    counted_steps: float | None = None
    counted_tokens: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """How far a running window is.

    Attributes:
        done: Requests ended, whether well or not.
        total: Requests in all; None with `duration_s`.
        output_tok_s: Output tokens of ended requests by the time until the last of them ended.
        accept_length: Tokens a verify step of ended requests, the target's own included; None
            without speculation.
    """

    done: int
    total: int | None
    output_tok_s: float | None
    accept_length: float | None = None


def job_to_json(job: Job) -> dict[str, Any]:
    """Return a job as JSON values."""
    return asdict(job)


def job_from_json(value: Mapping[str, Any]) -> Job:
    """Return the job that `job_to_json` wrote."""
    prompts = tuple(
        Prompt(**{**prompt, "messages": tuple(prompt["messages"])}) for prompt in value["prompts"]
    )
    times = value["arrivals_s"]
    return Job(
        **{
            **value,
            "prompts": prompts,
            "arrivals_s": None if times is None else tuple(times),
        }
    )


def window_to_json(window: Window) -> dict[str, Any]:
    """Return a window as JSON values."""
    plain = {f.name: getattr(window, f.name) for f in fields(window) if f.name != "timings"}
    names = [f.name for f in fields(RequestTiming)]
    return plain | {"timings": [{n: getattr(t, n) for n in names} for t in window.timings]}


def window_from_json(value: Mapping[str, Any]) -> Window:
    """Return the window that `window_to_json` wrote."""
    timings = tuple(
        RequestTiming(
            **{
                **timing,
                "chunk_ns": tuple(timing["chunk_ns"]),
                "accepted_histogram": None
                if timing["accepted_histogram"] is None
                else tuple(timing["accepted_histogram"]),
            }
        )
        for timing in value["timings"]
    )
    faults = tuple(None if fault is None else StreamFault(fault) for fault in value["faults"])
    return Window(**{**value, "timings": timings, "faults": faults})
