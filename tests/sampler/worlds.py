"""Small studies and sweeps for the sampler's tests."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from sweeper.config import parse_study
from sweeper.errors import Failure, FailureClass, Stage
from sweeper.planning.plan import Plan, make_plan
from sweeper.records import Measurement, Point, Purpose, Trial, TrialRecord, TrialState
from sweeper.sampler import Sampler, make_sampler
from sweeper.study import Study

SMALL = """
study: small
engine: {kind: simulated, model: /models/target, gpus: 1, flags: {speculative-algorithm: EAGLE3}}
parameters:
  steps: {flag: speculative-num-steps, values: [1, 2, 3, 4]}
  topk: {flag: speculative-eagle-topk, values: [1, 4]}
  draft_tokens:
    flag: speculative-num-draft-tokens
    values: [4, 8]
    when: topk > 1
    otherwise: steps + 1
  nccl: {choices: {default: {}, ring: {env: {NCCL_ALGO: Ring}}, tree: {env: {NCCL_ALGO: Tree}}}}
constraints: [steps < draft_tokens <= 1 + topk + (steps - 1) * topk ** 2]
workloads: [{name: single}, {name: busy, concurrency: 16}]
objectives: [{maximize: output_tok_s, workload: single}]
"""

PLAIN = """
study: plain
engine: {kind: simulated, model: /models/target, gpus: 1, flags: {}}
parameters:
  mem: {flag: mem-fraction-static, values: [0.7, 0.8, 0.9]}
  chunk: {flag: chunked-prefill-size, values: [1024, 2048, 4096, 16384]}
  nccl: {choices: {default: {}, ring: {env: {NCCL_ALGO: Ring}}, tree: {env: {NCCL_ALGO: Tree}}}}
workloads: [{name: single}]
objectives: [{maximize: output_tok_s}]
"""

SAMPLERS = ("auto", "tpe", "nsga2", "random", "grid", "qmc")
Speed = Callable[[Point], float]


def small_study(text: str = SMALL, **changes: object) -> Study:
    """Return a study of the text, changed."""
    return replace(parse_study(text, "small.yaml"), **changes)  # type: ignore[arg-type]


def speed_of(point: Point) -> float:
    """Return a speed with its best at 2 steps in a chain over Ring: 100 tok/s."""
    steps, topk = float(point.get("steps", 0)), float(point.get("topk", 1))
    speed = 90.0 - 4.0 * abs(steps - 2) - 3.0 * (topk > 1)
    speed += {"ring": 10.0, "tree": 4.0}.get(str(point.get("nccl")), 0.0)
    return speed - 1e-5 * abs(float(point.get("chunk", 4096)) - 4096)


def record(
    study: Study,
    number: int,
    point: Point,
    *,
    speed: Speed = speed_of,
    state: TrialState = TrialState.COMPLETE,
    kind: FailureClass = FailureClass.OOM,
    ttft_ms: float | None = 100.0,
) -> TrialRecord:
    """Return a finished trial; an empty point is the baseline."""
    value = speed(point)
    complete = state is TrialState.COMPLETE
    return TrialRecord(
        trial=Trial(
            study=study.name,
            number=number,
            purpose=Purpose.SEARCH if point else Purpose.BASELINE,
            point=point,
            launch=study.launch(point) if point else study.baseline_launch(),
        ),
        state=state,
        failure=None if complete else Failure(kind=kind, stage=Stage.LOAD, line="broke"),
        measurements=tuple(
            Measurement(
                workload=workload.name,
                requests=5,
                output_tokens=2500,
                output_tok_s=value * (workload.concurrency or 1) ** 0.5,
                output_tok_s_per_gpu=200.0 - value,
                ttft_p99_ms=ttft_ms,
                accept_length=1.9 if point else None,
            )
            for workload in (study.workloads if complete else ())
        ),
        started_at="2026-11-29T12:00:00+00:00",
        phases_s={"start": 60.0, "measure": 10.0},
        log="logs/server.log",
    )


def sweep(
    study: Study,
    launches: int,
    *,
    tell: Callable[[int, Point], TrialRecord] | None = None,
    plan: Plan | None = None,
) -> tuple[list[TrialRecord], Sampler]:
    """Run a sweep, baseline first; stop early where nothing is left."""
    sampler = make_sampler(study, plan or make_plan(study))
    records: list[TrialRecord] = []
    for number in range(launches):
        point: Point | None = {} if number == 0 else sampler.ask(keys(records))
        if point is None:
            break
        done = tell(number, point) if tell else record(study, number, point)
        records.append(done)
        sampler.tell(done)
    return records, sampler


def keys(records: Sequence[TrialRecord]) -> Collection[str]:
    """Return the launch keys of the records."""
    return {r.trial.launch.key for r in records}


def rng(seed: int) -> np.random.Generator:
    """Return a seeded generator."""
    return np.random.default_rng(seed)
