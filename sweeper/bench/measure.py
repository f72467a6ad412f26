"""Measures one workload on a ready server.

warm-up, on other prompts
for each repeat:  empty the cache -> send the prompt set, freshly salted -> timings
all timings --statistics.summarize--> Measurement
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sweeper.bench.jobs import Advance, Job, Window
from sweeper.bench.process import ClientProcess
from sweeper.bench.streams import StreamFault
from sweeper.bench.workload import PATHS, WARMUP_SET, load_arrivals, load_prompts, one_pass
from sweeper.clock import Clock
from sweeper.errors import BenchFailed, Failure, FailureClass, Stage, UserError
from sweeper.records import Limits, Measurement, RequestTiming, Workload
from sweeper.statistics.measurement import summarize, with_acceptance

#: More failed requests than this share, and the measurement is no good.
MAX_FAILED_SHARE = 0.2
#: A client that busy stamps late.
MAX_CPU_SHARE = 0.97
#: Shorter windows, in real seconds, say nothing about the client's load.
_LOAD_SEEN_S = 2.0
_WARMUP_TOKENS = 64

_CLASSES = {
    StreamFault.TRUNCATED: FailureClass.TRUNCATED_STREAM,
    StreamFault.STALLED: FailureClass.HANG,
    StreamFault.CLIENT: FailureClass.CLIENT_LIMIT,
    StreamFault.REFUSED: FailureClass.UNKNOWN,
    StreamFault.SERVER: FailureClass.UNKNOWN,
    StreamFault.CONNECT: FailureClass.UNKNOWN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a measurement is.

    Attributes:
        workload: Name of the workload.
        repeat: The pass that runs, from 0; -1 is the warm-up.
        repeats: Passes in all; 1 with `duration_s`.
        done: Requests ended in this pass.
        total: Requests of this pass; None with `duration_s`.
        output_tok_s: Speed of this pass so far, over requests that ended; None before the first.
        accept_length: Tokens a verify step of this pass so far; None without speculation.
    """

    workload: str
    repeat: int
    repeats: int
    done: int
    total: int | None
    output_tok_s: float | None
    accept_length: float | None = None


def _nothing(*_: object) -> None:
    """Do nothing."""


def _never(_: object) -> bool:
    return False


def measure(
    client: ClientProcess,
    *,
    url: str,
    model: str,
    workload: Workload,
    gpus: int,
    clock: Clock,
    limits: Limits,
    salt: str,
    api_key: str | None = None,
    on_progress: Callable[[Progress], None] = _nothing,
    check: Callable[[], None] = _nothing,
    flush: str = "must",
    enough: Callable[[Sequence[RequestTiming]], bool] = _never,
    on_warm: Callable[[], None] = _nothing,
) -> tuple[Measurement, tuple[RequestTiming, ...]]:
    """Measure one workload and return what it showed, with all requests.

    Args:
        client: Sends and stamps.
        url: The server, "http://127.0.0.1:30000".
        model: The model's name on the OpenAI routes.
        workload: What is sent.
        gpus: GPUs of the server; 0 for none.
        clock: Engine time; its scale is the server's.
        limits: `progress_s` and `probe_s` count.
        salt: Must differ between measurements on one server. Launches whose greedy answers are to
            be compared need the same one.
        api_key: Sent as a bearer token.
        on_progress: Told how far it is, about four times a second.
        check: Called at least once a second while waiting; what it raises abandons the job.
        flush: "must" fails where the server's cache cannot be emptied, "try" goes on, "no" leaves
            the cache alone.
        enough: Asked after each pass but the last, with all requests so far; True leaves out the
            passes that remain.
        on_warm: Told once the warm-up is over and before anything that counts is sent.

    Raises:
        BenchFailed: More than a fifth of the requests failed, or all of one pass; nothing came
            any more; the cache could not be emptied; or the client was the limit.
        UserError: A mistake in the workload's prompts or route.
    """
    if workload.route not in PATHS:
        raise UserError(f"no route {workload.route!r}; there are {', '.join(PATHS)}")
    times = None if workload.arrivals is None else load_arrivals(workload.arrivals)
    prompts = one_pass(
        load_prompts(workload.prompts),
        workload.concurrency,
        None if times is None else len(times),
    )
    repeats = workload.repeats or 1
    allowed = int(MAX_FAILED_SHARE * len(prompts) * repeats)
    job = Job(
        url=url,
        model=model,
        workload=workload.name,
        prompts=prompts,
        salt=f"{salt}/{workload.name}/{workload.seed}",
        route=workload.route,
        chat_template=workload.chat_template,
        concurrency=workload.concurrency,
        request_rate=workload.request_rate,
        arrivals_s=times,
        ramp_s=workload.ramp_s,
        seed=workload.seed,
        duration_s=workload.duration_s,
        max_tokens=workload.max_tokens,
        temperature=workload.temperature,
        ignore_eos=workload.ignore_eos,
        time_scale=clock.scale,
        progress_s=limits.progress_s,
        probe_s=limits.probe_s,
        flush=flush,
        api_key=api_key,
    )

    def run(job: Job, repeat: int) -> Window:
        def advance(now: Advance) -> None:
            on_progress(
                Progress(
                    workload=workload.name,
                    repeat=repeat,
                    repeats=repeats,
                    done=now.done,
                    total=now.total,
                    output_tok_s=now.output_tok_s,
                    accept_length=now.accept_length,
                )
            )

        return client.run(job, on_advance=advance, check=check)

    if workload.warmup:
        _refuse_broken(run(_warmup(job, workload.warmup), -1), None)
    on_warm()
    windows: list[Window] = []
    failed = 0
    for repeat in range(repeats):
        budget = None if workload.duration_s else allowed - failed
        window = run(replace(job, repeat=repeat, max_failed=budget), repeat)
        windows.append(window)
        failed += sum(fault is not None for fault in window.faults)
        _refuse_broken(window, budget)
        if repeat + 1 < repeats and enough([t for w in windows for t in w.timings]):
            break
    requests = tuple(timing for window in windows for timing in window.timings)
    if failed > MAX_FAILED_SHARE * len(requests):
        raise _too_many(windows)
    drafted = [window.drafted_tokens for window in windows]
    measurement = summarize(
        requests,
        workload=workload,
        gpus=gpus,
        drafted_tokens=None if None in drafted else sum(n or 0 for n in drafted),
        client_cpu_share=_cpu_share(windows),
    )
    steps, tokens = (
        None if None in counts else sum(n or 0.0 for n in counts)
        for counts in (
            [window.counted_steps for window in windows],
            [window.counted_tokens for window in windows],
        )
    )
    if steps and tokens and tokens >= steps:
        measurement = with_acceptance(measurement, tokens / steps, "counters")
    templates = {window.chat_template for window in windows}
    return (
        replace(measurement, chat_template=templates.pop() if len(templates) == 1 else "partly"),
        requests,
    )


def _warmup(job: Job, count: int) -> Job:
    """Return the job that warms up: other prompts, short answers, as many streams as later."""
    prompts = load_prompts(WARMUP_SET)
    chosen = tuple(replace(prompts[i % len(prompts)], id=f"warmup-{i}") for i in range(count))
    return replace(
        job,
        prompts=chosen,
        salt=job.salt + "/warmup",
        concurrency=min(job.concurrency or count, count),
        request_rate=None,
        arrivals_s=None,
        ramp_s=0.0,
        duration_s=None,
        max_tokens=min(job.max_tokens, _WARMUP_TOKENS),
        flush="no",
    )


def _refuse_broken(window: Window, budget: int | None) -> None:
    """Raise if a pass shows that going on would be in vain."""
    failed = sum(fault is not None for fault in window.faults)
    if window.given_up or failed == len(window.faults) or (budget is not None and failed > budget):
        raise _too_many([window])


def _too_many(windows: list[Window]) -> BenchFailed:
    """Return the failure that the commonest fault stands for, with one request's error."""
    faults = [fault for window in windows for fault in window.faults]
    errors = [timing.error for window in windows for timing in window.timings]
    counts = Counter(fault for fault in faults if fault is not None)
    if not counts:
        return _failed(FailureClass.UNKNOWN, "no request was sent")
    commonest, _ = counts.most_common(1)[0]
    example = errors[faults.index(commonest)]
    line = f"{counts.total()} of {len(faults)} requests failed; {commonest}: {example}"
    return _failed(_CLASSES[commonest], line)


def _cpu_share(windows: list[Window]) -> float | None:
    """Return the client's CPU time by time.

    Raises:
        BenchFailed: It was too busy to stamp in time.
    """
    cpu_s, wall_s = sum(w.cpu_s for w in windows), sum(w.wall_s for w in windows)
    if wall_s <= 0:
        return None
    share = cpu_s / wall_s
    if share > MAX_CPU_SHARE and wall_s > _LOAD_SEEN_S:
        what = f"the client used {share:.0%} of a core, so that its stamps came late"
        raise _failed(FailureClass.CLIENT_LIMIT, what)
    return share


def _failed(kind: FailureClass, line: str) -> BenchFailed:
    return BenchFailed(Failure(kind=kind, stage=Stage.SERVING, line=line))
