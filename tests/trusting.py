"""Whole sweeps without servers, on nodes whose speed and chance are known.

The real agenda, confirmation and verdict over records drawn from the simulated server's cost
model. Settings are asked for in a seeded random order, which finds them no better than it must.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from statistics import median

import numpy as np

from sweeper.config import parse_study
from sweeper.engines.simulated.calibrations import CALIBRATIONS, KINDS
from sweeper.engines.simulated.cost import Nccl, Setting, request_s
from sweeper.judging.verdict import Verdict, judge
from sweeper.planning.agenda import Ask, Ledger, next_trial
from sweeper.planning.plan import make_plan
from sweeper.records import (
    HostFacts,
    Launch,
    Measurement,
    Point,
    ServerFacts,
    Trial,
    TrialRecord,
    TrialState,
)
from sweeper.study import Study

SPACE = """\
study: trust
engine:
  kind: simulated
  model: /models/target
  gpus: 8
  flags: {tp-size: 8, speculative-algorithm: EAGLE3}
baseline: {every: 5}
parameters:
  draft:
    flag: speculative-draft-model-path
    choices: {ours: /models/ours, aq-medai: /models/aq-medai}
  steps: {flag: speculative-num-steps, values: [1, 2, 3, 5]}
  topk: {flag: speculative-eagle-topk, values: [1]}
  draft_tokens: {flag: speculative-num-draft-tokens, values: [9], when: steps > 9, otherwise: steps + 1}
  nccl:
    choices:
      default: {}
      ring-ll: {env: {NCCL_ALGO: Ring, NCCL_PROTO: LL}}
      ring-simple: {env: {NCCL_ALGO: Ring, NCCL_PROTO: Simple}}
workloads: [{name: single, max_tokens: 500, repeats: REPEATS}]
objectives: [{maximize: output_tok_s}]
budget: {launches: 38, confirm: 9}
"""
BEGIN = datetime(2026, 11, 29, 20, 0, tzinfo=UTC)
CALIBRATION = CALIBRATIONS["kimi-k2.5-later"]
RUNS = 100
#: Launch -> factor on times.
Weather = Callable[[int], float]


def steady(_: int) -> float:
    return 1.0


def drifting(launch: int) -> float:
    """Lose a tenth of the speed over the sweep."""
    return 1.0 + 0.1 * launch / 37


def swinging(launch: int) -> float:
    """Swing by a tenth, from the best to the worst and back, over the sweep."""
    return 1.0 + 0.05 * math.sin(2 * math.pi * launch / 38)


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine and its chance.

    Attributes:
        weather: How its speed changes over launches.
        launch_sigma: Relative standard deviation of launches.
        request_sigma: Relative standard deviation of requests.
        equal: Whether all settings are as fast as the baseline.
        slots: Factor on times of each slot; as many trials run at once.
    """

    weather: Weather = steady
    launch_sigma: float = 0.006
    request_sigma: float = 0.008
    equal: bool = False
    slots: tuple[float, ...] = (1.0,)


def cost_setting(launch: Launch) -> Setting:
    steps = launch.flags.get("speculative-num-steps")
    nccl = Nccl(
        algo=launch.env.get("NCCL_ALGO", "").upper() or None,
        proto=launch.env.get("NCCL_PROTO", "").upper() or None,
    )
    if not isinstance(steps, int):
        return Setting(nccl=nccl)
    draft = str(launch.flags["speculative-draft-model-path"]).rpartition("/")[2]
    return Setting(draft=draft, steps=steps, draft_tokens=steps + 1, nccl=nccl)


def times_s(launch: Launch, node: Node) -> np.ndarray:
    """Return the true time of a request of each kind."""
    return setting_times_s(Setting() if node.equal else cost_setting(launch))


@cache
def setting_times_s(setting: Setting) -> np.ndarray:
    return np.array([request_s(CALIBRATION, setting, kind) for kind in KINDS])


def measured(
    trial: Trial, node: Node, repeats: int, rng: np.random.Generator, slot: int = 0
) -> TrialRecord:
    slower = (
        node.slots[slot] * node.weather(trial.number) * math.exp(rng.normal(0, node.launch_sigma))
    )
    noise = np.exp(rng.normal(0, node.request_sigma, size=(repeats, len(KINDS))))
    passes_s = (times_s(trial.launch, node) * slower * noise).sum(axis=1)
    speeds = tuple(float(500 * len(KINDS) / s) for s in passes_s)
    return TrialRecord(
        trial=trial,
        state=TrialState.COMPLETE,
        measurements=(
            Measurement(
                workload="single",
                requests=repeats * len(KINDS),
                output_tok_s=median(speeds),
                repeats_tok_s=speeds,
            ),
        ),
        server=ServerFacts(version="0.5.23", flags={}, rewritten={}, simulated=True),
        host=HostFacts(host="node", slot=f"slot-{slot}"),
        started_at=(BEGIN + timedelta(minutes=20 * (trial.number // len(node.slots)))).isoformat(),
        phases_s={"start": 600.0, "measure": 300.0},
        log="x.log",
    )


def next_round(
    study: Study, records: Sequence[TrialRecord], slots: Sequence[str], ask: Ask
) -> tuple[list[Trial], dict[int, str]]:
    """Return a trial for each slot that gets one, and the slot of each number."""
    running: list[Trial] = []
    seats: dict[int, str] = {}
    for slot in slots:
        ledger = Ledger(
            study=study,
            records=records,
            running=running,
            next_number=len(records) + len(running),
            seats=seats,
            alive=slots,
        )
        trial = next_trial(ledger, ask, slot)
        if trial is not None:
            running.append(trial)
            seats[trial.number] = slot
    return running, seats


def sweep(study: Study, node: Node, seed: int) -> tuple[Verdict, list[TrialRecord]]:
    """Run a whole sweep, each trial in a moment."""
    rng = np.random.default_rng(seed)
    settings = list(make_plan(study).settings.items())
    order = [settings[i] for i in rng.permutation(len(settings))]

    def ask(taken: Collection[str]) -> Point | None:
        return next((point for key, (point, _) in order if key not in taken), None)

    names = [f"slot-{i}" for i in range(len(node.slots))]
    records: list[TrialRecord] = []
    while True:
        running, seats = next_round(study, records, names, ask)
        if not running:
            return judge(records, study), records
        repeats = study.workloads[0].repeats or 1
        records += [measured(t, node, repeats, rng, names.index(seats[t.number])) for t in running]


def study_of(repeats: int, **budget: object) -> Study:
    study = parse_study(SPACE.replace("REPEATS", str(repeats)), "space.yaml")
    return replace(study, budget=replace(study.budget, **budget))  # type: ignore[arg-type]


def throttled(seed: int) -> Weather:
    """Lose 15 % for six launches, somewhere."""
    begin = int(np.random.default_rng(seed + 999).integers(0, 30))
    return lambda launch: 1.15 if begin <= launch < begin + 6 else 1.0


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """How all runs ended.

    Attributes:
        right: The winner truly beats the baseline and is within 1 % of the best setting.
        none: No winner.
        wrong: Another winner.
    """

    right: int
    none: int
    wrong: int


def play(study: Study, node_of: Callable[[int], Node]) -> Outcomes:
    """Run RUNS sweeps."""
    plan = make_plan(study)
    right = none = 0
    for seed in range(RUNS):
        node = node_of(seed)
        verdict, _ = sweep(study, node, seed)
        if not verdict.beats_baseline or verdict.winner is None:
            none += 1
            continue
        truths = {k: 1 / times_s(launch, node).sum() for k, (_, launch) in plan.settings.items()}
        base = 1 / times_s(study.baseline_launch(), node).sum()
        won = truths[verdict.winner.key]
        right += bool(won > base * 1.0001 and won >= 0.99 * max(truths.values()))
    return Outcomes(right=right, none=none, wrong=RUNS - right - none)
