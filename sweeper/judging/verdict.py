"""The answer of a study in one sentence: which setting wins, and whether it beats the baseline.

The winner is compared with the measured baseline over passes of the same prompts; it beats the
baseline only if the whole interval of that ratio says so. Where settings were confirmed only
their confirmations are judged, since the launches that made them finalists flatter them. The
interval allows for the best having been picked out of several.
"""

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.judging.fairness import unfair, unfair_templates
from sweeper.judging.ratio import Repeats, launch_ratio, launch_variance, ratio_of, repeats_of
from sweeper.judging.standings import Standing, baseline, best, with_baseline
from sweeper.objective import trend
from sweeper.records import Launch, TrialRecord, TrialState
from sweeper.redaction import HIDDEN, is_secret_name, redact_value, redact_words
from sweeper.space import point_text
from sweeper.statistics.intervals import Interval
from sweeper.statistics.trend import LAUNCH_NOISE, Trend
from sweeper.study import Study
from sweeper.wording import measure, plain_number

#: Objectives whose chance one launch shows, in its passes or in the speeds of its requests.
_SHOWN_BY_ONE = frozenset({"output_tok_s", "output_tok_s_per_gpu", "output_tok_s_per_user"})
#: Names of variables that a shell sets itself; others need the program `env`.
_ASSIGNABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

__all__ = ["LAUNCH_NOISE", "Verdict", "judge", "launch_ratio", "shell_command"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the sweep found.

    Attributes:
        sentence: The answer for people.
        winner: The best setting that is not the baseline; None if none was measured or may win.
        baseline: The baseline; None if it was not measured.
        ratio: Winner by baseline in the first objective, with its interval; None if unknown.
        change: The winner's number by the baseline's: the ratio, or where small is good its inverse.
        beats_baseline: Whether the interval says that the winner is better.
        command: The command to run: the winner's, or the baseline's where nothing beats it.
        simulated: Whether the figures come from the simulated server.
        notes: What else to know before believing it, a sentence each.
        launch_noise: Relative standard deviation between launches of one setting that the
            interval reckons with.
    """

    sentence: str
    winner: Standing | None
    baseline: Standing | None
    ratio: Interval | None
    change: Interval | None
    beats_baseline: bool
    command: str
    simulated: bool
    notes: tuple[str, ...] = ()
    launch_noise: float = LAUNCH_NOISE


def judge(records: Sequence[TrialRecord], study: Study) -> Verdict:
    """Return the verdict on all finished trials of a study."""
    found = with_baseline(records, study.objectives, study.slos)
    base = baseline(found)
    winner = best(found, study.objectives)
    moved = trend(records, study.objectives[0])
    repeats = repeats_of(found, moved, study)
    noise = math.sqrt(launch_variance(LAUNCH_NOISE**2, repeats))
    ratio = ratio_of(winner, base, found, moved, repeats, study) if winner and base else None
    change = ratio
    if ratio is not None and not study.objectives[0].maximize:
        change = Interval(low=1 / ratio.high, mid=1 / ratio.mid, high=1 / ratio.low)
    shows = study.objectives[0].metric in _SHOWN_BY_ONE or repeats.freedom > 0
    better = ratio is not None and ratio.low > 1.0 and shows
    # A baseline that breaks a limit is no command for who set it.
    shown = winner if winner and (better or base is None or base.broken) else base
    simulated = any(r.trial.launch.simulated for r in records) or study.simulated
    stopped = {r.trial.launch.key for r in records if r.state is TrialState.PRUNED}
    return Verdict(
        sentence=_sentence(found, winner, base, change, better, study, simulated, len(stopped))
        + _drift_text(moved),
        winner=winner,
        baseline=base,
        ratio=ratio,
        change=change,
        beats_baseline=better,
        command=shell_command(shown.records[0].trial.launch, study.engine.nodes) if shown else "",
        simulated=simulated,
        notes=_notes(records, study, winner, base, moved, repeats, noise),
        launch_noise=noise,
    )


def _drift_text(moved: Trend) -> str:
    if moved.drifted:
        low, high = moved.swing
        return (
            f"; the node drifted ({low * 100:+.1f} to {high * 100:+.1f} % about the baseline's "
            "mean), so each launch is compared with the baseline around it"
        )
    if moved.uneven and moved.level is not None:
        levels = [math.expm1(log - math.log(moved.level)) * 100 for log in moved.places.values()]
        return (
            f"; the slots differ ({min(levels):+.1f} to {max(levels):+.1f} % about the baseline's "
            "mean), so each launch is compared with the baseline on its own slot"
        )
    return ""


def _notes(
    records: Sequence[TrialRecord],
    study: Study,
    winner: Standing | None,
    base: Standing | None,
    moved: Trend,
    repeats: Repeats,
    noise: float,
) -> tuple[str, ...]:
    found: list[str] = []
    if base and base.broken:
        found.append(f"the baseline breaks {', '.join(base.broken)}")
    metric = study.objectives[0].metric
    if winner and base and not repeats.freedom and metric not in _SHOWN_BY_ONE:
        found.append(
            f"one launch does not show how far chance moves {metric}, so that nothing can be said "
            "to beat the baseline by it; budget.confirm and baseline.every repeat launches"
        )
    if winner and base and not winner.is_confirmed:
        found.append(
            "the winner was not launched again; budget.confirm keeps launches back for that"
        )
    if winner:
        shares = [m.answers_equal_share for r in winner.records for m in r.measurements]
        known = [s for s in shares if s is not None]
        if known:
            # Rounded down: all is said of all only.
            share = math.floor(min(known) * 1000 + 1e-6) / 10
            found.append(f"{share:g} % of the winner's greedy answers equal the baseline's")
    if moved.line is not None and moved.drifted:
        change = moved.line.share_per_hour * 100
        found.append(f"the baseline changed by {change:+.1f} % an hour")
    if repeats.freedom:
        found.append(
            f"launches of one setting differ by {noise:.1%} (standard deviation, from "
            f"{repeats.freedom:.0f} repeated launches and the assumed {LAUNCH_NOISE:.0%})"
        )
    found += [f"unfair: {difference}" for difference in unfair(records, study)]
    found += [f"unfair: {line}" for line in unfair_templates(records)]
    return tuple(found)


def _sentence(
    found: Sequence[Standing],
    winner: Standing | None,
    base: Standing | None,
    change: Interval | None,
    better: bool,
    study: Study,
    simulated: bool,
    stopped: int,
) -> str:
    mark = "SIMULATED: " if simulated else ""
    objective = study.objectives[0]
    unit = measure(objective.metric)
    if winner is None:
        level = f"{plain_number(base.values[0])} {unit}" if base else ""
        others = [s for s in found if not s.is_baseline]
        if others:
            reasons = ", ".join(dict.fromkeys(reason for s in others for reason in s.broken))
            text = f"{mark}no measured setting can win (limits broken: {reasons})"
            return f"{text}; the baseline: {level}" if base else text
        if base and stopped:  # only speeds are compared early
            early = f"{stopped} stopped early, certainly slower"
            return f"{mark}no setting beats the baseline: {level}; {early}"
        return f"{mark}" + (
            f"only the baseline was measured: {level}" if base else "no setting was measured"
        )
    setting = point_text(winner.records[0].trial.point)
    if base is None:
        level = plain_number(winner.values[0])
        return f"{mark}best is {setting} at {level} {unit}; no baseline to compare with"
    levels = " against ".join(plain_number(s.values[0]) for s in (winner, base)) + f" {unit}"
    if change is None:  # a number that is 0 has no ratio
        return f"{mark}best is {setting}: {levels}, which gives no ratio"
    low, mid, high = ((x - 1) * 100 for x in (change.low, change.mid, change.high))
    figures = f"{levels}, {mid:+.1f} % (95 % interval {low:+.1f} to {high:+.1f} %)"
    if better:
        return f"{mark}{setting} beats the baseline: {figures}"
    if base.broken:
        broken = ", ".join(base.broken)
        return f"{mark}best that keeps all limits is {setting}: {figures}; the baseline breaks {broken}"
    if change.high < 1.0 if objective.maximize else change.low > 1.0:
        worse = "slower" if "tok_s" in objective.metric else "worse"
        return (
            f"{mark}no setting beats the baseline; the nearest, {setting}, is {worse}: {figures}"
        )
    return f"{mark}no setting is shown to beat the baseline; the nearest is {setting}: {figures}"


def shell_command(launch: Launch, nodes: int = 1) -> str:
    """Return the whole launch command with its environment, for a shell; secrets hidden.

    A server over several nodes is started by the same command on each; what only that node knows
    it takes from two variables.
    """
    env = sorted(launch.env.items())
    if all(_ASSIGNABLE.fullmatch(name) for name, _ in env):
        lines = [f"{name}={_word(name, value)}" for name, value in env]
    else:
        lines = ["env", *(shlex.quote(f"{name}={_shown(name, value)}") for name, value in env)]
    lines.append(shlex.join(redact_words(launch.command)))
    lines.append(f"--model-path {shlex.quote(launch.model)}")
    for name, value in sorted(launch.flags.items()):
        if value is False:
            continue
        if value is True:
            lines.append(f"--{name}")
            continue
        words = value if isinstance(value, tuple) else (value,)
        lines.append(f"--{name} " + " ".join(_word(name, str(word)) for word in words))
    if nodes > 1:
        lines.append(f"--nnodes {nodes}")
        lines.append('--node-rank "${NODE_RANK:?0 on the first node}"')
        lines.append('--dist-init-addr "${FIRST_NODE:?HOST:PORT of the first node}"')
    return " \\\n  ".join(lines)


def _word(name: str, value: str) -> str:
    return shlex.quote(_shown(name, value))


def _shown(name: str, value: str) -> str:
    return HIDDEN if is_secret_name(name) else redact_value(value)
