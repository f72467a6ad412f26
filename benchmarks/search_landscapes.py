"""Landscapes for `search.py`: what each setting would really do, and noisy launches of it.

The truth of a setting is its speed and, for each kind of prompt, the chances that its draft tokens
are accepted. A launch draws step time and accepted tokens from it and gives the record that a real
one would. The simulated server's calibrations are landscapes; `search_machines.py` has random ones.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sweeper.engines.simulated.calibrations import CALIBRATIONS, KINDS
from sweeper.engines.simulated.cost import Nccl, Setting, survival, tok_s
from sweeper.errors import Failure, FailureClass, Stage
from sweeper.planning.plan import Plan, make_plan
from sweeper.records import (
    HostFacts,
    Launch,
    Measurement,
    Point,
    Purpose,
    Trial,
    TrialRecord,
    TrialState,
)
from sweeper.speculation import shape_of
from sweeper.study import Study

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
    accepted: dict[str, tuple[int, ...]] = {}
    total_steps = 0.0
    for kind in kinds:
        length = means[kind]
        if truth.survival.get(kind):
            survive = np.array([1.0, *truth.survival[kind], 0.0])
            shares = np.maximum(survive[:-1] - survive[1:], 0.0)
            shares /= shares.sum()
            counts = rng.multinomial(round(sample), shares) if sample else 1e6 * shares
            accepted[kind] = tuple(round(c) for c in counts)
            length = float(np.arange(1, len(shares) + 1) @ counts / counts.sum())
        total_steps += MAX_TOKENS / length
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
        accepted_by_kind=accepted or None,
        step_time_ms=1000 * step_s,
    )
    return TrialRecord(
        trial=trial,
        state=TrialState.COMPLETE,
        measurements=(measurement,),
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
    # A collective's name may stand before the algorithm's: "allreduce:tree".
    algo, proto = env.get("NCCL_ALGO", "").rpartition(":")[2], env.get("NCCL_PROTO", "")
    common = Setting(
        graphs=not launch.flags.get("disable-cuda-graph"),
        nccl=Nccl(algo=algo.upper() or None, proto=proto.upper() or None),
        draft_tp=1 if env.get("SWEEPER_DRAFT_TP") == "1" else None,
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
