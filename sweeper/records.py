"""The frozen records that every room speaks in; units are in the names.

    Study -> Trial -> Launch + Workloads -> RequestTiming -> Measurement -> TrialRecord

    WAITING -> RUNNING -> COMPLETE     measured
                       -> PRUNED       stopped early: certainly worse; keeps what it measured
                       -> INFEASIBLE   the setting cannot work here; never launched again
                       -> FAILED       the machine's fault; retried, at most twice

Missing is None, never 0. Times of requests are integers in nanoseconds of engine time
(`clock.py`); all else is in the unit its name ends with.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sweeper.errors import Failure
from sweeper.redaction import redact_mapping, redact_words

Scalar = str | int | float | bool
#: A flag's value: True writes the bare flag, False leaves it out, a tuple writes several words.
FlagValue = Scalar | tuple[Scalar, ...]
#: Parameter name -> its value, or the label of its choice. Inactive parameters are absent.
Point = Mapping[str, Scalar]


class TrialState(StrEnum):
    """Where a trial stands; drawn in the module's docstring."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETE = "complete"
    PRUNED = "pruned"
    INFEASIBLE = "infeasible"
    FAILED = "failed"

    @property
    def is_finished(self) -> bool:
        """Tell whether nothing more will happen to the trial."""
        return self not in (TrialState.WAITING, TrialState.RUNNING)


class Purpose(StrEnum):
    """Why a trial is run."""

    BASELINE = "baseline"
    KNOWN = "known"
    SEARCH = "search"
    CONFIRM = "confirm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is started: enough to start it again on another day.

    Attributes:
        engine: Name of the engine adapter, "sglang".
        command: The program and its first words; the flags are appended.
        model: Path or name of the target model.
        gpus: GPUs of one server; 0 for a server that needs none.
        flags: Flag name without dashes -> value; the model's own flag is not among them.
        env: Environment that belongs to the setting.
        simulated: Whether the program is the embedded simulated server.
    """

    engine: str
    command: tuple[str, ...]
    model: str
    gpus: int
    flags: Mapping[str, FlagValue]
    env: Mapping[str, str] = field(default_factory=dict)
    simulated: bool = False
    _key: str | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def key(self) -> str:
        """Identity of the setting: 12 hexadecimal digits, equal for equal launches.

        Secret values do not count, so that a stored, redacted launch has the same identity.
        """
        if self._key is None:
            # Asked for every record before each launch, so it is made once.
            object.__setattr__(self, "_key", self._digest())
        assert self._key is not None
        return self._key

    def _digest(self) -> str:
        identity = [
            self.engine,
            redact_words(self.command),
            self.model,
            self.gpus,
            sorted((k, v) for k, v in redact_mapping(self.flags).items() if v is not False),
            sorted(redact_mapping(self.env).items()),
            self.simulated,
        ]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is sent to a ready server, and how.

    Attributes:
        name: Its name in the space file.
        prompts: Name of a shipped prompt set, or path of a user's file.
        concurrency: Streams kept open, closed loop; None in an open loop.
        request_rate: Requests a second, Poisson, open loop; None otherwise.
        arrivals: Path of a trace of send times, open loop, one request each; None otherwise.
        ramp_s: Engine seconds over which the load grows from nothing to its full height: streams
            open one by one, or the rate grows; its requests count like all others.
        max_tokens: Output tokens asked of each request.
        repeats: How often the whole prompt set is sent; None with `duration_s`.
        duration_s: How long requests are sent, in engine seconds; None with `repeats`.
        warmup: Requests sent before, not counted.
        temperature: 0 is greedy.
        ignore_eos: Whether answers always have `max_tokens` tokens.
        route: The streaming route: "generate", "completions" or "chat".
        seed: Seed of arrivals and salts.
        chat_template: Whether the plain routes send prompts in the server's chat template:
            "auto" where it has one, "always", or "never".
    """

    name: str
    prompts: str = "five"
    concurrency: int | None = 1
    request_rate: float | None = None
    max_tokens: int = 500
    repeats: int | None = 1
    duration_s: float | None = None
    warmup: int = 1
    temperature: float = 0.0
    ignore_eos: bool = True
    route: str = "generate"
    seed: int = 0
    arrivals: str | None = None
    ramp_s: float = 0.0
    chat_template: str = "auto"

    def __post_init__(self) -> None:
        loads = (self.concurrency, self.request_rate, self.arrivals)
        if sum(load is not None for load in loads) != 1:
            raise ValueError("give one of concurrency, request_rate and arrivals")
        if (self.repeats is None) == (self.duration_s is None):
            raise ValueError("give either repeats or duration_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long to wait, in engine seconds.

    Attributes:
        start_s: A whole start.
        silence_s: A start without a new log line or other progress.
        stop_s: A polite stop, before the group is killed.
        memory_free_s: GPU memory coming back after the group is gone.
        progress_s: A stream without a chunk.
        probe_s: One control request (health, read-back, flush).
    """

    start_s: float = 1800.0
    silence_s: float = 300.0
    stop_s: float = 20.0
    memory_free_s: float = 60.0
    progress_s: float = 120.0
    probe_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One setting to be tried, planned.

    Attributes:
        study: The study's name.
        number: Its number in the study, from 0; never used twice.
        purpose: Why it is run.
        point: The canonical point; empty for the baseline.
        launch: What is started.
        attempt: 0, or how many machine faults this setting has had before.
        retry_of: Number of the first trial of the same setting, for a retry.
        context: Hash of what makes rows comparable beyond the launch: workloads, simulation.
    """

    study: str
    number: int
    purpose: Purpose
    point: Point
    launch: Launch
    attempt: int = 0
    retry_of: int | None = None
    context: str = ""

    @property
    def salt(self) -> str:
        """What its prompts are salted with: equal for trials whose answers can be compared.

        The servers are fresh and each pass is flushed, so all trials may see the same prompts:
        that pairs them. Confirmations see others than the search, whose choice they check.
        """
        return f"{self.study}/confirm" if self.purpose is Purpose.CONFIRM else self.study


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTiming:
    """One request, stamped in nanoseconds of engine time since the window began.

    Attributes:
        workload: Name of the workload.
        repeat: Which pass over the prompt set, from 0.
        prompt_id: The prompt's id in its set.
        prompt_kind: The prompt's kind: chat, code, maths, ...
        sent_ns: When the request was sent.
        first_ns: Arrival of the first piece with content; None if none came.
        last_ns: Arrival of the last piece with content.
        chunk_ns: Arrival of each piece with content.
        prompt_tokens: As the server counts them.
        cached_tokens: Prompt tokens found in the prefix cache.
        output_tokens: As the server counts them; None if it did not say.
        verify_steps: Verify steps of this request; None without speculation.
        accepted_histogram: Index i: steps in which i draft tokens were accepted.
        finish: The server's finish reason.
        error: What broke it; None for a good request.
        text: The answer.
        note: Why a count is missing or is not as the server gave it; None for none.
    """

    workload: str
    repeat: int
    prompt_id: str
    prompt_kind: str
    sent_ns: int
    first_ns: int | None = None
    last_ns: int | None = None
    chunk_ns: tuple[int, ...] = ()
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    verify_steps: int | None = None
    accepted_histogram: tuple[int, ...] | None = None
    finish: str | None = None
    error: str | None = None
    text: str = ""
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one workload showed on one launch. Formulas: `statistics/`.

    Attributes:
        workload: Name of the workload.
        requests: Requests that ended well.
        failed_requests: Requests that did not.
        concurrency: Streams asked for; None in an open loop.
        achieved_concurrency: Mean number of requests in flight over the window.
        window_s: From the first send to the last token; with `duration_s` from the ramp's end
            to the deadline.
        prompt_tokens: Sum over good requests.
        cached_tokens: Sum over good requests; None where the server does not say.
        output_tokens: Sum over good requests.
        output_tok_s: Median over repeats of output tokens by window.
        output_tok_s_low: Lower end of the interval.
        output_tok_s_high: Upper end of the interval.
        output_tok_s_per_gpu: `output_tok_s` by GPUs; None for a server without.
        output_tok_s_per_user: Median over requests of the speed of one stream.
        repeats_tok_s: `output_tok_s` of each repeat, in order.
        ttft_p50_ms: Time to first token; p90, p99 likewise.
        tpot_p50_ms: Time per output token after the first; p90, p99 likewise.
        gap_p50_ms: Time between chunks, whatever tokens they hold; p99 likewise.
        e2e_p50_ms: From send to last token; p99 likewise.
        accept_length: Tokens a verify step yields, the target's own included; None if unknown.
        accept_source: Where it comes from: "histogram", "counters", "log", or None.
        accept_rate: Accepted share of the drafted tokens; None if unknown.
        accepted_histogram: Sum over requests.
        accepted_by_position: Index j: share of steps in which draft position j was accepted.
        accepted_by_kind: Prompt kind -> the histogram over its requests; JSON in the table.
        step_time_ms: Time of one draft-and-verify round of a stream.
        client_cpu_share: CPU time of the client by window, 1 is a whole core.
        no_graph_share: Share of the log's decode lines without a CUDA graph; None if none says.
        retractions: Requests sent back because the KV pool was full; None without a log.
        answers_equal_share: Share of greedy answers equal to the baseline's; None if not compared.
        degenerate_share: Share of answers that are empty, broken or loop; None if not looked at.
        chat_template: Whose chat template the prompts stood in: "server", "prompts" that bring
            one, "partly" for some, or "none"; None if unknown.
    """

    workload: str
    requests: int
    failed_requests: int = 0
    concurrency: int | None = None
    achieved_concurrency: float | None = None
    window_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    output_tok_s: float | None = None
    output_tok_s_low: float | None = None
    output_tok_s_high: float | None = None
    output_tok_s_per_gpu: float | None = None
    output_tok_s_per_user: float | None = None
    repeats_tok_s: tuple[float, ...] = ()
    ttft_p50_ms: float | None = None
    ttft_p90_ms: float | None = None
    ttft_p99_ms: float | None = None
    tpot_p50_ms: float | None = None
    tpot_p90_ms: float | None = None
    tpot_p99_ms: float | None = None
    gap_p50_ms: float | None = None
    gap_p99_ms: float | None = None
    e2e_p50_ms: float | None = None
    e2e_p99_ms: float | None = None
    accept_length: float | None = None
    accept_source: str | None = None
    accept_rate: float | None = None
    accepted_histogram: tuple[int, ...] | None = None
    accepted_by_position: tuple[float, ...] | None = None
    accepted_by_kind: Mapping[str, tuple[int, ...]] | None = None
    step_time_ms: float | None = None
    client_cpu_share: float | None = None
    no_graph_share: float | None = None
    retractions: int | None = None
    answers_equal_share: float | None = None
    degenerate_share: float | None = None
    chat_template: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What a ready server says of itself.

    Attributes:
        version: The engine's version.
        flags: Flag name without dashes -> effective value, as far as the server tells.
        rewritten: Flag name -> (asked, effective) where the two differ.
        simulated: Whether the server says that it is the simulated one.
        time_scale: Its engine seconds in a real second; 1 for a real engine.
        max_total_tokens: Size of its KV pool in tokens; None if it did not say.
    """

    version: str
    flags: Mapping[str, FlagValue | None]
    rewritten: Mapping[str, tuple[FlagValue | None, FlagValue | None]]
    simulated: bool
    time_scale: float = 1.0
    max_total_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Where a trial ran.

    Attributes:
        host: Host name.
        slot: Name of the slot.
        gpu_name: Model of the GPUs; "simulated" for fake ones.
        gpu_ids: The GPUs given to the server.
        driver_version: The NVIDIA driver's version; None without one.
        ray_node_id: Node in the Ray cluster; None outside one.
        sharing: Slots that share this host's GPUs, itself among them; 1 for a host of its own.
        other_hosts: Where the other processes of a server over several nodes ran.
    """

    host: str
    slot: str
    gpu_name: str | None = None
    gpu_ids: tuple[int, ...] = ()
    driver_version: str | None = None
    ray_node_id: str | None = None
    sharing: int = 1
    other_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One finished trial, complete: the unit of the store.

    Attributes:
        trial: What was asked.
        state: How it ended.
        failure: Why there is no result; None for COMPLETE and PRUNED.
        measurements: One for each workload, in order.
        requests: All requests of all workloads.
        server: What the server said it runs; None if it never answered.
        host: Where it ran; None if nothing was started.
        started_at: UTC, ISO 8601.
        phases_s: Engine seconds by phase: turn (waiting for the node's other slots), start,
            measure, stop, memory_free, and each stage of the start as `start.<stage>`; lost, of
            a trial whose node or other rank went away.
        log: Path of the server's log below the run folder; None if nothing was started.
        reason: For a setting refused before launch, why; for one that was launched, what was
            left when its server had ended.
    """

    trial: Trial
    state: TrialState
    failure: Failure | None = None
    measurements: tuple[Measurement, ...] = ()
    requests: tuple[RequestTiming, ...] = ()
    server: ServerFacts | None = None
    host: HostFacts | None = None
    started_at: str
    phases_s: Mapping[str, float] = field(default_factory=dict)
    log: str | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if not self.state.is_finished:
            raise ValueError(f"a record is of a finished trial, not {self.state}")
        if self.state is TrialState.COMPLETE and (self.failure or not self.measurements):
            raise ValueError("a complete trial has measurements and no failure")
        if self.state is TrialState.FAILED and self.failure is None:
            raise ValueError("a failed trial says why")
        if self.state is TrialState.INFEASIBLE and not (self.failure or self.reason):
            raise ValueError("an infeasible trial says why")

    @property
    def launched(self) -> bool:
        """Tell whether a server was started for it, and so a launch spent."""
        return self.log is not None

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of engine time that it took."""
        return (
            sum(v for k, v in self.phases_s.items() if "." not in k)
            * max(self.trial.launch.gpus, 1)
            / 3600.0
        )

    def measurement(self, workload: str | None = None) -> Measurement | None:
        """Return the measurement of `workload`, or of the first one."""
        for measurement in self.measurements:
            if workload is None or measurement.workload == workload:
                return measurement
        return None
