"""Records by small functions: whole runs whose numbers follow from a few constants."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sweeper.config import parse_study, shipped_spaces
from sweeper.errors import Failure, FailureClass, Stage
from sweeper.records import (
    HostFacts,
    Launch,
    Measurement,
    Point,
    Purpose,
    RequestTiming,
    Scalar,
    ServerFacts,
    Trial,
    TrialRecord,
    TrialState,
)
from sweeper.report.prompts import RequestReader
from sweeper.statistics.measurement import summarize
from sweeper.study import Study

PROMPTS = (
    ("story", "chat"),
    ("sort", "code"),
    ("sum", "maths"),
    ("mail", "chat"),
    ("sql", "code"),
)


def study(name: str = "eagle3", **changes: str) -> Study:
    """Return a shipped study on the simulated server; `changes` replace words of its text."""
    text = shipped_spaces()[name].read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return parse_study(text, f"spaces/{name}.yaml").resolved(gpus_present=False)


SPACE = """
study: small
engine: {kind: simulated, model: /models/target, gpus: 2, flags: {tp-size: 2, speculative-algorithm: EAGLE3}}
baseline: {reference_tok_s: 90}
parameters:
  draft:
    flag: speculative-draft-model-path
    choices: {ours: /models/ours, theirs: /models/theirs}
  steps: {flag: speculative-num-steps, values: [1, 2, 3]}
  topk: {flag: speculative-eagle-topk, values: [1, 4]}
  draft_tokens:
    {flag: speculative-num-draft-tokens, values: [4, 8], when: topk > 1, otherwise: steps + 1}
  nccl: {choices: {default: {}, tree: {env: {NCCL_ALGO: Tree}}}}
workloads: [{name: single, repeats: 1}]
objectives: [{maximize: output_tok_s, workload: single}]
"""


def small_study(text: str = SPACE) -> Study:
    """Return a study whose numbers fit in a head."""
    return parse_study(text, "small.yaml")


def point(
    steps: int = 2, nccl: str = "default", draft: str = "ours", **more: Scalar
) -> dict[str, Scalar]:
    """Return a point of the small study; a chain unless `topk` says otherwise."""
    return {
        "draft": draft,
        "steps": steps,
        "topk": 1,
        "draft_tokens": steps + 1,
        "nccl": nccl,
        **more,
    }


def record(
    of: Study,
    number: int,
    at: Point | None = None,
    *,
    tok_s: float | None = None,
    purpose: Purpose | None = None,
    state: TrialState = TrialState.COMPLETE,
    failure: Failure | None = None,
    launch: Launch | None = None,
    phases_s: Mapping[str, float] | None = None,
    reason: str | None = None,
    started: bool = True,
    server: ServerFacts | None = None,
    measurements: Sequence[Measurement] | None = None,
    requests: Sequence[RequestTiming] = (),
    host: HostFacts | None = None,
) -> TrialRecord:
    """Return a record; a number for `tok_s` gives it a measurement on the first workload."""
    if measurements is None:
        measurements = (
            []
            if tok_s is None
            else [Measurement(workload=of.workloads[0].name, requests=5, output_tok_s=tok_s)]
        )
    return TrialRecord(
        trial=Trial(
            study=of.name,
            number=number,
            purpose=purpose or (Purpose.BASELINE if at is None else Purpose.SEARCH),
            point=at or {},
            launch=launch or (of.baseline_launch() if at is None else of.launch(at)),
        ),
        state=state,
        failure=failure,
        measurements=tuple(measurements),
        requests=tuple(requests),
        server=server,
        host=host,
        started_at=f"2026-11-29T20:{number % 60:02d}:00+00:00",
        phases_s=phases_s if phases_s is not None else {"start": 600.0, "measure": 120.0},
        log=f"logs/{number:06d}.log" if started else None,
        reason=reason,
    )


def failed(
    of: Study,
    number: int,
    at: Point,
    kind: FailureClass = FailureClass.OOM,
    line: str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
) -> TrialRecord:
    """Return a record of a setting that could not start."""
    failure = Failure(kind=kind, stage=Stage.GRAPH_CAPTURE, line=line, exit_code=1)
    return record(of, number, at, state=TrialState.INFEASIBLE, failure=failure)


def requests(
    *,
    workload: str = "single",
    step_ms: float = 22.0,
    accept: float = 0.6,
    steps: int = 2,
    tokens: int = 400,
    repeats: int = 1,
    seed: int = 0,
    prompts: Sequence[tuple[str, str]] = PROMPTS,
) -> tuple[RequestTiming, ...]:
    """Return requests of a chain that accepts each position with a chance around `accept`."""
    chance = random.Random(seed)
    found: list[RequestTiming] = []
    now = 0
    for repeat in range(repeats):
        for prompt, kind in prompts:
            p = accept * {"code": 1.25, "maths": 1.1}.get(kind, 0.9)
            histogram = [0] * (steps + 1)
            made = 0
            while made < tokens:
                taken = 0
                while taken < steps and chance.random() < p:
                    taken += 1
                histogram[taken] += 1
                made += taken + 1
            rounds = sum(histogram)
            first = now + 80_000_000
            last = first + int(rounds * step_ms * 1e6 * chance.gauss(1, 0.01))
            found.append(
                RequestTiming(
                    workload=workload,
                    repeat=repeat,
                    prompt_id=prompt,
                    prompt_kind=kind,
                    sent_ns=now,
                    first_ns=first,
                    last_ns=last,
                    chunk_ns=(first, last),
                    prompt_tokens=50,
                    output_tokens=tokens,
                    verify_steps=rounds if steps else None,
                    accepted_histogram=tuple(histogram) if steps else None,
                    finish="length",
                )
            )
            now = last + 1_000_000
    return tuple(found)


def night(of: Study, trials: int = 24, *, seed: int = 1) -> list[TrialRecord]:
    """Return a whole sweep as a node might have run it, the baseline every eighth launch."""
    chance = random.Random(seed)
    points = [p for p in of.space.points() if of.space.violation(p) is None]
    chance.shuffle(points)
    points = [*(dict(p) for p in of.known), *points]
    found: list[TrialRecord] = []
    for number in range(trials):
        if number % 8 == 0:
            found.append(_launched(of, number, None, chance))
        else:
            at = points[number % len(points)]
            found.append(
                failed(of, number, at)
                if chance.random() < 0.1
                else _launched(of, number, at, chance)
            )
    return found


def _launched(of: Study, number: int, at: Point | None, chance: random.Random) -> TrialRecord:
    steps = int((at or {}).get("steps", 0))
    tokens = int((at or {}).get("draft_tokens", 1))
    step_ms = 11.0 + 1.1 * steps + 2.2 * tokens**0.6 - 2.2
    step_ms *= {"tree-ll": 0.88, "ring-ll": 0.93}.get(str((at or {}).get("nccl")), 1.0)
    step_ms *= 1.6 if (at or {}).get("cuda_graph") == "off" else 1.0
    accept = 0.35 if (at or {}).get("draft") == "aq-medai" else 0.6
    sent: list[RequestTiming] = []
    measured: list[Measurement] = []
    for workload in of.workloads:
        streams = workload.concurrency or 1
        some = requests(
            workload=workload.name,
            step_ms=step_ms * (1 + streams / 40) * chance.gauss(1, 0.01),
            accept=accept,
            steps=steps,
            repeats=3,
            seed=chance.randrange(10**6),
        )
        sent += some
        measured.append(_busy(summarize(some, workload=workload, gpus=of.engine.gpus), streams))
    launch = of.baseline_launch() if at is None else of.launch(at)
    rewritten = {} if at is None else {"max-running-requests": (None, 48)}
    return record(
        of,
        number,
        at,
        measurements=measured,
        requests=sent,
        server=ServerFacts(
            version="0.5.15",
            flags=dict(launch.flags),
            rewritten=rewritten,
            simulated=launch.simulated,
            time_scale=10.0 if launch.simulated else 1.0,
            max_total_tokens=400_000,
        ),
        host=HostFacts(
            host="node-1", slot="slot-0", gpu_name="NVIDIA H200", driver_version="570.86"
        ),
        phases_s={
            "start": 620.0,
            "start.import": 40.0,
            "start.load": 380.0,
            "start.graph_capture": 150.0,
            "measure": chance.uniform(60, 120),
            "stop": 12.0,
            "memory_free": 4.0,
        },
    )


def _busy(measurement: Measurement, streams: int) -> Measurement:
    """Return the measurement of one stream as if `streams` had shared the server."""
    if streams == 1 or measurement.output_tok_s is None:
        return measurement
    per_gpu = measurement.output_tok_s_per_gpu
    return replace(
        measurement,
        output_tok_s=measurement.output_tok_s * streams,
        output_tok_s_per_gpu=None if per_gpu is None else per_gpu * streams,
    )


def reader(records: Sequence[TrialRecord]) -> RequestReader:
    """Return a reader of the requests that the records carry."""
    by_number = {r.trial.number: r.requests for r in records}

    def read(number: int) -> Sequence[RequestTiming]:
        return by_number.get(number, ())

    return read
