"""Landscapes for `search.py`: what each setting would really do, and noisy launches of it.

    kimi-first, kimi-later   the simulated server's two calibrations, over search_spaces/eagle3.yaml
    drawn                    random machines from a family wider than the model
    nccl-accept              ... where acceptance depends on NCCL, by timing
    cliffs                   ... where verification jumps at graph sizes
    tree                     ... where a tree with 6 tokens or more is best
    nospec                   ... where no speculation is best
    failing                  ... where a tenth of the settings cannot start

Random machines are redrawn for each seed until they fit their name. No sampler sees a constant of
them: acceptance comes from a tree search over rank probabilities, step time from a sum of
milliseconds with a norm, cliffs and own effects, none of which the model's features can express.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sweeper.config import find_space, load_study, parse_study
from sweeper.engines.simulated.calibrations import CALIBRATIONS, KINDS
from sweeper.engines.simulated.cost import Nccl, Setting, survival, tok_s, tree_survival
from sweeper.errors import Failure, FailureClass, Stage
from sweeper.plan import Plan, make_plan
from sweeper.records import (
    HostFacts,
    Launch,
    Measurement,
    Point,
    Purpose,
    RequestTiming,
    Trial,
    TrialRecord,
    TrialState,
)
from sweeper.speculation import shape_of
from sweeper.study import Study

#: 1,692 settings: 70 shapes x graphs x 6 NCCL choices x draft placement, and 12 without.
SPACE = """
study: benchmark
engine:
  kind: simulated
  model: /models/target
  gpus: 8
  flags: {tp-size: 8, max-running-requests: 48}
baseline: {drop: [speculative-*]}
parameters:
  spec:
    choices:
      eagle: {flags: {speculative-algorithm: EAGLE3, speculative-draft-model-path: /models/draft}}
      none: {}
  steps: {flag: speculative-num-steps, values: [1, 2, 3, 4, 5, 6], when: spec == 'eagle'}
  topk: {flag: speculative-eagle-topk, values: [1, 2, 4, 8], when: spec == 'eagle'}
  draft_tokens:
    flag: speculative-num-draft-tokens
    values: [4, 8, 16, 32]
    when: topk > 1
    otherwise: steps + 1
  cuda_graph: {choices: {on: {}, off: {flags: {disable-cuda-graph: true}}}}
  nccl:
    choices:
      default: {}
      ring-ll: {env: {NCCL_ALGO: Ring, NCCL_PROTO: LL}}
      ring-ll128: {env: {NCCL_ALGO: Ring, NCCL_PROTO: LL128}}
      ring-simple: {env: {NCCL_ALGO: Ring, NCCL_PROTO: Simple}}
      tree-ll: {env: {NCCL_ALGO: Tree, NCCL_PROTO: LL}}
      tree-simple: {env: {NCCL_ALGO: Tree, NCCL_PROTO: Simple}}
  draft_tp:
    choices: {shared: {}, one: {env: {SWEEPER_DRAFT_TP: 1}}}
    when: spec == 'eagle'
constraints: [draft_tokens <= 1 + topk + (steps - 1) * topk ** 2]
workloads: [{name: single, max_tokens: 500}]
objectives: [{maximize: output_tok_s}]
budget: {launches: 40}
"""
MAX_TOKENS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What one setting would do.

    Attributes:
        tok_s: Its true speed.
        survival: Prompt kind -> chance that at least i + 1 draft tokens are accepted.
        fails: Whether it cannot start.
    """

    tok_s: float
    survival: Mapping[str, tuple[float, ...]]
    fails: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Landscape:
    """A study, what it can launch, and the truth of each setting and of the baseline."""

    name: str
    study: Study
    plan: Plan
    truths: Mapping[str, Truth]

    @property
    def best_tok_s(self) -> float:
        """Speed of the best setting that starts."""
        return max(self.truths[k].tok_s for k in self.plan.settings if not self.truths[k].fails)

    def launch(
        self,
        number: int,
        point: Point,
        *,
        noise: float,
        start_s: float,
        rng: np.random.Generator,
        purpose: Purpose = Purpose.SEARCH,
    ) -> TrialRecord:
        """Return the record of one launch.

        Args:
            number: The trial's number.
            point: The setting; an empty one is the baseline.
            noise: Relative sd of the speed of one launch; a third of its variance is of step
                times, the rest of the acceptance of a limited number of steps.
            start_s: Seconds of a start.
            rng: All chance.
            purpose: Why it is launched.
        """
        study = self.study
        launch = study.launch(point) if point else study.baseline_launch()
        trial = Trial(study=study.name, number=number, purpose=purpose, point=point, launch=launch)
        truth = self.truths[launch.key]
        if truth.fails:
            failure = Failure(
                kind=FailureClass.OOM, stage=Stage.GRAPH_CAPTURE, line="out of memory"
            )
            return TrialRecord(
                trial=trial,
                state=TrialState.INFEASIBLE,
                failure=failure,
                started_at="2026-01-01T00:00:00+00:00",
                phases_s={"start": start_s / 2},
                log="server.log",
            )
        return _measured(trial, truth, study.workloads[0].name, noise, start_s, rng)


def _measured(
    trial: Trial,
    truth: Truth,
    workload: str,
    noise: float,
    start_s: float,
    rng: np.random.Generator,
) -> TrialRecord:
    kinds = list(truth.survival) or list(KINDS)
    means = {k: 1.0 + math.fsum(truth.survival.get(k, ())) for k in kinds}
    step_s = len(kinds) / math.fsum(1 / m for m in means.values()) / truth.tok_s
    step_s *= math.exp(rng.normal(0.0, noise * 0.66))
    # At noise 2 % 1,000 steps are drawn, which is 1.5 % of the accept length.
    sample = 1000 / len(kinds) * (0.02 / noise) ** 2 if noise else 0.0
    requests = []
    total_steps = 0.0
    for kind in kinds:
        length = means[kind]
        histogram: tuple[int, ...] | None = None
        if truth.survival.get(kind):
            survive = np.array([1.0, *truth.survival[kind], 0.0])
            shares = np.maximum(survive[:-1] - survive[1:], 0.0)
            shares /= shares.sum()
            counts = rng.multinomial(round(sample), shares) if sample else 1e6 * shares
            histogram = tuple(round(c) for c in counts)
            length = float(np.arange(1, len(shares) + 1) @ counts / counts.sum())
        total_steps += MAX_TOKENS / length
        requests.append(
            RequestTiming(
                workload=workload,
                repeat=0,
                prompt_id=kind,
                prompt_kind=kind,
                sent_ns=0,
                output_tokens=MAX_TOKENS,
                accepted_histogram=histogram,
            )
        )
    window_s = total_steps * step_s
    tokens = MAX_TOKENS * len(kinds)
    measurement = Measurement(
        workload=workload,
        requests=len(kinds),
        concurrency=1,
        window_s=window_s,
        output_tokens=tokens,
        output_tok_s=tokens / window_s,
        accept_length=tokens / total_steps if truth.survival else None,
        step_time_ms=1000 * step_s,
    )
    return TrialRecord(
        trial=trial,
        state=TrialState.COMPLETE,
        measurements=(measurement,),
        requests=tuple(requests),
        host=HostFacts(host="bench", slot="0"),
        started_at="2026-01-01T00:00:00+00:00",
        phases_s={"start": start_s, "measure": window_s, "stop": 5.0},
        log="server.log",
    )


def calibrated(calibration: str, study: Study) -> Landscape:
    """Return a landscape from the simulated server's cost model."""
    cal = CALIBRATIONS[calibration]
    plan = make_plan(study)
    launches = [launch for _, launch in plan.settings.values()] + [study.baseline_launch()]
    truths = {}
    for launch in launches:
        setting = cost_setting(launch)
        truths[launch.key] = Truth(
            tok_s=tok_s(cal, setting),
            survival={k: survival(cal, setting, k) for k in KINDS} if setting.draft else {},
        )
    return Landscape(name=calibration, study=study, plan=plan, truths=truths)


def cost_setting(launch: Launch) -> Setting:
    """Return what the cost model looks at."""
    shape = shape_of(launch.flags)
    env = launch.env
    algo, proto = env.get("NCCL_ALGO"), env.get("NCCL_PROTO")
    common = Setting(
        graphs=not launch.flags.get("disable-cuda-graph"),
        nccl=Nccl(algo=algo and algo.upper(), proto=proto and proto.upper()),
        draft_on_one_gpu=env.get("SWEEPER_DRAFT_TP") == "1",
    )
    if shape is None:
        return common
    return replace(
        common,
        draft="aq-medai" if "aq-medai" in shape.draft.lower() else "ours",
        steps=shape.steps,
        topk=shape.topk,
        draft_tokens=shape.draft_tokens,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """Constants of one random machine, in ms and relative factors."""

    accept: tuple[float, ...]
    second: float
    decay: float
    kinds: Mapping[str, float]
    base: float
    comm: float
    slope: float
    log_slope: float
    overhead: float
    draft: float
    draft_comm: float
    draft_one: float
    tree: float
    host: float
    host_draft: float
    cliffs: Mapping[int, float]
    nccl: Mapping[object, tuple[float, float]]
    accept_nccl: float
    own: float


def _machine(rng: np.random.Generator, name: str) -> _Machine:
    first = rng.uniform(0.55, 0.8)
    fall = rng.uniform(0.85, 1.0)
    accept = tuple(float(first * fall**j * rng.uniform(0.95, 1.05)) for j in range(6))
    cliff = (0.08, 0.30) if name == "cliffs" else (0.0, 0.06)
    places = rng.choice([3, 4, 5, 6, 8, 9, 16, 17, 32], size=3, replace=False)
    base = rng.uniform(7.0, 9.0)
    tree = name == "tree"
    return _Machine(
        accept=tuple(min(a, 0.95) for a in accept),
        second=rng.uniform(0.3, 0.5) if tree else rng.uniform(0.1, 0.4),
        decay=rng.uniform(0.4, 0.7),
        kinds={k: float(np.exp(rng.normal(0, 0.15))) for k in KINDS},
        base=base,
        comm=rng.uniform(2.0, 4.0),
        slope=rng.uniform(0.01, 0.1) if tree else rng.uniform(0.05, 0.5),
        log_slope=rng.uniform(0.0, 1.0),
        overhead=rng.uniform(1.0, 5.0) + (4.0 if name == "nospec" else 0.0),
        draft=rng.uniform(0.5, 2.0),
        draft_comm=rng.uniform(0.3, 1.2),
        draft_one=rng.uniform(0.8, 2.0),
        tree=rng.uniform(0.0, 0.3) if tree else rng.uniform(0.0, 1.5),
        host=rng.uniform(15.0, 30.0),
        host_draft=rng.uniform(1.0, 3.0),
        cliffs={int(p): float(rng.uniform(*cliff) * base) for p in places},
        nccl={},
        accept_nccl=0.12 if name == "nccl-accept" else 0.0,
        own=0.007,
    )


def _random_truths(
    rng: np.random.Generator, name: str, plan: Plan, baseline: Launch
) -> dict[str, Truth]:
    m = _machine(rng, name)
    factors: dict[object, tuple[float, float, float]] = {}
    shape_own: dict[object, float] = {}
    truths = {}
    for launch in [launch for _, launch in plan.settings.values()] + [baseline]:
        shape = shape_of(launch.flags)
        nccl = (launch.env.get("NCCL_ALGO"), launch.env.get("NCCL_PROTO"))
        if nccl not in factors:
            factors[nccl] = (
                float(np.exp(rng.normal(0, 0.17))) if nccl != (None, None) else 1.0,
                float(rng.normal(0, 0.03)) if nccl != (None, None) else 0.0,
                float(rng.normal(0, m.accept_nccl)),
            )
        factor, by_tokens, shift = factors[nccl]
        tokens = shape.draft_tokens if shape else 1
        comm = m.comm * factor * (1 + by_tokens * math.log2(tokens))
        gpu = m.base + comm + m.slope * (tokens - 1) + m.log_slope * math.log2(tokens)
        gpu += sum(cost for place, cost in m.cliffs.items() if tokens >= place)
        host = m.host
        chances: dict[str, tuple[float, ...]] = {}
        if shape:
            one = launch.env.get("SWEEPER_DRAFT_TP") == "1"
            draft = m.draft * m.draft_one if one else m.draft + m.draft_comm * factor
            gpu += m.overhead + shape.steps * draft + (m.tree if shape.is_tree else 0.0)
            host += m.host_draft * shape.steps
            own = shape_own.setdefault(shape, float(np.exp(rng.normal(0, m.own))))
            gpu *= own
            for kind, power in m.kinds.items():
                accept = tuple(a ** (power * math.exp(shift)) for a in m.accept[: shape.steps])
                chances[kind] = tree_survival(
                    accept, m.second, m.decay, topk=shape.topk, nodes=shape.draft_tokens - 1
                )
        if launch.flags.get("disable-cuda-graph"):
            gpu = (gpu**4 + host**4) ** 0.25
        gpu *= math.exp(rng.normal(0, m.own))
        length = 1.0
        if chances:
            length = len(chances) / math.fsum(1 / (1 + math.fsum(c)) for c in chances.values())
        truths[launch.key] = Truth(tok_s=1000 * length / gpu, survival=chances)
    return truths


def _best(plan: Plan, truths: Mapping[str, Truth]) -> tuple[Launch, float]:
    key = max(plan.settings, key=lambda k: truths[k].tok_s)
    return plan.settings[key][1], truths[key].tok_s


def _fits(name: str, plan: Plan, truths: Mapping[str, Truth], baseline: Launch) -> bool:
    launch, speed = _best(plan, truths)
    shape = shape_of(launch.flags)
    if name == "tree":
        return shape is not None and shape.is_tree and shape.draft_tokens >= 6
    if name == "nospec":
        return shape is None
    return shape is not None and 1.03 < speed / truths[baseline.key].tok_s < 1.6


def _with_failures(
    rng: np.random.Generator, plan: Plan, truths: Mapping[str, Truth]
) -> dict[str, Truth]:
    """Let two families fail: 32 draft tokens, and one NCCL choice with one draft placement."""
    nccl = ["ring-ll", "ring-ll128", "ring-simple", "tree-ll", "tree-simple"]
    bad = nccl[int(rng.integers(len(nccl)))]
    found = dict(truths)
    for key, (point, _) in plan.settings.items():
        family = point.get("draft_tokens") == 32 and point.get("topk") == 8
        if family or (point["nccl"] == bad and point.get("draft_tp") == "one"):
            found[key] = replace(truths[key], fails=True)
    return found


def benchmark_study() -> Study:
    """Return the study of the random machines."""
    return parse_study(SPACE, "benchmark.yaml")


def drawn(name: str, study: Study, plan: Plan) -> Callable[[int], Landscape]:
    """Return seed -> a random landscape of that name."""
    baseline = study.baseline_launch()

    def draw(seed: int) -> Landscape:
        rng = np.random.default_rng([seed, sum(map(ord, name))])
        while True:
            truths = _random_truths(rng, name, plan, baseline)
            if _fits(name, plan, truths, baseline):
                break
        if name == "failing":
            truths = _with_failures(rng, plan, truths)
        return Landscape(name=name, study=study, plan=plan, truths=truths)

    return draw


def all_landscapes(names: Sequence[str]) -> dict[str, Callable[[int], Landscape]]:
    """Return name -> (seed -> landscape)."""
    found: dict[str, Callable[[int], Landscape]] = {}
    study = benchmark_study()
    plan = make_plan(study)
    for name in names:
        if name in CALIBRATIONS:
            eagle3 = load_study(find_space("eagle3")).resolved(gpus_present=False)
            fixed = calibrated(name, eagle3)
            found[name] = lambda _seed, fixed=fixed: fixed  # type: ignore[misc]
        else:
            found[name] = drawn(name, study, plan)
    return found
