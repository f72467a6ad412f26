"""Random machines: landscapes from a family wider than the search's model.

    drawn         as they come
    nccl-accept   acceptance depends on NCCL, by timing
    cliffs        verification jumps at graph sizes
    tree          a tree with 6 draft tokens or more is best
    nospec        no speculation is best
    failing       a tenth of the settings cannot start

A machine is redrawn until it fits its name. No sampler sees a constant of it: acceptance comes
from a tree search over rank probabilities, step time from a sum of milliseconds with a norm,
cliffs and own effects of shapes and settings, none of which the model's features can express.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.search_landscapes import Landscape, Truth, calibrated
from sweeper.config import find_space, load_study, parse_study
from sweeper.engines.simulated.calibrations import CALIBRATIONS, KINDS
from sweeper.engines.simulated.cost import tree_survival
from sweeper.planning.plan import Plan, make_plan
from sweeper.records import Launch
from sweeper.speculation import shape_of
from sweeper.study import Study

#: 1,812 settings: 75 shapes x graphs x 6 NCCL choices x draft placement, and 12 without.
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
    values: [4, 6, 8, 16, 32]
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
constraints: [steps < draft_tokens <= 1 + topk + (steps - 1) * topk ** 2]
workloads: [{name: single, max_tokens: 500}]
objectives: [{maximize: output_tok_s}]
budget: {launches: 40}
"""


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


def _truths(rng: np.random.Generator, name: str, plan: Plan, baseline: Launch) -> dict[str, Truth]:
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


def random_truths(seed: int, name: str, plan: Plan, baseline: Launch) -> dict[str, Truth]:
    """Return the truth of a random machine whose landscape fits its name.

    Args:
        seed: Seed of the machine.
        name: "drawn", "nccl-accept", "cliffs", "tree", "nospec" or "failing".
        plan: The settings.
        baseline: The setting without speculation that all are compared with.
    """
    rng = np.random.default_rng([seed, sum(map(ord, name))])
    while True:
        truths = _truths(rng, name, plan, baseline)
        if _fits(name, plan, truths, baseline):
            return _with_failures(rng, plan, truths) if name == "failing" else truths


def benchmark_study() -> Study:
    """Return the study of the random machines."""
    return parse_study(SPACE, "benchmark.yaml")


def drawn(name: str, study: Study, plan: Plan) -> Callable[[int], Landscape]:
    """Return seed -> a random landscape of that name."""
    baseline = study.baseline_launch()

    def draw(seed: int) -> Landscape:
        truths = random_truths(seed, name, plan, baseline)
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
