"""The answer of a study in one sentence: which setting wins, and whether it beats the baseline.

The winner is compared with the measured baseline over passes of the same prompts; it beats the
baseline only if the whole interval of that ratio says so. Where settings were confirmed only
their confirmations are judged, since the launches that made them finalists flatter them. The
interval allows for the best having been picked out of several.
"""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean

from sweeper.judging.fairness import unfair
from sweeper.objective import Standing, baseline, best, contenders, sample, standings, trend
from sweeper.records import Launch, TrialRecord
from sweeper.redaction import HIDDEN, is_secret_name, redact_text
from sweeper.space import point_text
from sweeper.statistics.intervals import Interval, student_t
from sweeper.statistics.trend import LAUNCH_NOISE, Sample, Trend, pass_noise, roughness
from sweeper.study import Study
from sweeper.wording import measure

__all__ = ["LAUNCH_NOISE", "Verdict", "judge", "launch_ratio", "shell_command"]

#: How many launches' worth of evidence the assumed LAUNCH_NOISE counts as once launches of one
#: setting were repeated.
_PRIOR_FREEDOM = 2
_ALPHA = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the sweep found.

    Attributes:
        sentence: The answer for people.
        winner: The best setting that is not the baseline; None if none was measured.
        baseline: The baseline; None if it was not measured.
        ratio: Winner by baseline in the first objective, with its interval; None if unknown.
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
    beats_baseline: bool
    command: str
    simulated: bool
    notes: tuple[str, ...] = ()
    launch_noise: float = LAUNCH_NOISE


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """What launches of one setting, repeated, showed of chance between launches.

    Attributes:
        squares: Sum of squares of logarithms about the mean of their setting.
        freedom: Its degrees of freedom; 0 if nothing was repeated.
    """

    squares: float = 0.0
    freedom: float = 0.0


def judge(records: Sequence[TrialRecord], study: Study) -> Verdict:
    """Return the verdict on all finished trials of a study."""
    found = standings(records, study.objectives, study.slos)
    base = baseline(found)
    winner = best(found, study.objectives)
    moved = trend(records, study.objectives[0])
    repeats = _repeats(found, moved, study)
    noise = math.sqrt(_launch_variance(LAUNCH_NOISE**2, repeats))
    ratio = _ratio(winner, base, found, moved, repeats, study) if winner and base else None
    better = ratio is not None and ratio.low > 1.0
    shown = winner if winner and (better or base is None) else base
    simulated = any(r.trial.launch.simulated for r in records) or study.simulated
    return Verdict(
        sentence=_sentence(winner, base, ratio, study, simulated) + _drift_text(moved),
        winner=winner,
        baseline=base,
        ratio=ratio,
        beats_baseline=better,
        command=shell_command(shown.records[0].trial.launch) if shown else "",
        simulated=simulated,
        notes=_notes(records, study, winner, base, moved, repeats, noise),
        launch_noise=noise,
    )


def _candidates(found: Sequence[Standing], winner: Standing, study: Study) -> int:
    """Return out of how many settings, about as good, the winner was picked."""
    allowed = [s for s in found if not s.broken and not s.is_baseline]
    allowed = [s for s in allowed if s.is_confirmed] or allowed
    return len(contenders(allowed, winner, study.objectives))


def _repeats(found: Sequence[Standing], moved: Trend, study: Study) -> Repeats:
    """Return the chance between launches of one setting, drift taken out.

    Where the baseline was used to take out drift it cannot show chance about itself; then its
    bends do. Launches around which the node jumped are left out.
    """
    squares, freedom = 0.0, 0.0
    for standing in found:
        if standing.is_baseline and moved.drifted:
            continue
        launches = standing.records if standing.is_baseline else standing.judged
        samples = [s for s in _samples(launches, study) if not moved.doubt(s)]
        logs = [_corrected_log(s, moved) for s in samples]
        if len(logs) > 1:
            centre = fmean(logs)
            squares += sum((x - centre) ** 2 for x in logs)
            freedom += len(logs) - 1
    if moved.drifted:
        bends = roughness(moved)
        squares, freedom = squares + bends[0], freedom + bends[1]
    return Repeats(squares=squares, freedom=freedom)


def _samples(records: Sequence[TrialRecord], study: Study) -> list[Sample]:
    found = [sample(r, study.objectives[0]) for r in records]
    return [s for s in found if s is not None]


def _corrected_log(one: Sample, moved: Trend) -> float:
    return one.log - math.log(moved.factor(one))


def _ratio(
    winner: Standing,
    base: Standing,
    found: Sequence[Standing],
    moved: Trend,
    repeats: Repeats,
    study: Study,
) -> Interval | None:
    """Return winner by baseline in the first objective, above 1 where the winner is better.

    Without drift the baseline's launches count alike: nobody picked it for being fast, so those
    of the search are as good as those of the confirmations, unless it speculates, when other
    prompts may be easier. With drift each launch of the winner is compared with the baseline's
    around it, which so get weights.
    """
    steady = all(m.accept_length is None for r in base.records for m in r.measurements)
    a, b = (
        _samples(winner.judged, study),
        _samples(base.records if steady else base.judged, study),
    )
    if not a or not b:
        return None
    a = [s for s in a if not moved.doubt(s)] or a
    doubt = max(moved.doubt(s) for s in a)
    weights = [1 / len(b)] * len(b)
    if moved.drifted and all(moved.around(s) for s in a):
        sums: dict[int, float] = {}
        anchors = {s.number: s for place in moved.anchors.values() for s in place}
        for one in a:
            for anchor, weight in moved.around(one):
                sums[anchor.number] = sums.get(anchor.number, 0.0) + weight / len(a)
        b = [anchors[number] for number in sums]
        weights = list(sums.values())
    ratio = launch_ratio(
        [s.passes for s in a],
        [s.passes for s in b],
        weights=weights,
        repeats=repeats,
        candidates=_candidates(found, winner, study),
        # Of single passes only a baseline's own requests tell the noise.
        seen=pass_noise(_samples(base.records, study))[0],
    )
    ratio = replace(ratio, low=ratio.low / (1 + doubt), high=ratio.high * (1 + doubt))
    if study.objectives[0].maximize:
        return ratio
    return Interval(low=1 / ratio.high, mid=1 / ratio.mid, high=1 / ratio.low)


def launch_ratio(
    a: Sequence[Sequence[float]],
    b: Sequence[Sequence[float]],
    *,
    weights: Sequence[float] | None = None,
    repeats: Repeats | None = None,
    candidates: int = 1,
    seen: float = 0.0,
) -> Interval:
    """Return how many times as large `a` is as `b`, with its interval.

    Each inner sequence is one launch: its passes over the same prompts. On logarithms, with na
    launches of a and Na passes, and launches j of b with weight w[j] and N[j] passes, the squared
    half width is

        z^2 LAUNCH_NOISE^2 (1/na + sum w^2) + t^2 s^2 (1/Na + sum w^2/N)

    s^2 is the variance of passes about the mean of their launch, pooled over both sides, t its
    Student quantile. A launch's own noise cannot be seen in one launch, so it is assumed. Where
    launches were repeated, with sum of squares S and freedom f, it is

        t^2 v (1/na + sum w^2),    v = (2 v0 + S) / (2 + f),    freedom of t: 2 + f

    v0 is the assumed variance with that of the passes of a launch. Quantiles are those of 0.05 by
    `candidates` (Bonferroni), so that the best of several is not taken for better by luck.

    Args:
        a: Launches of the one setting.
        b: Launches of the other.
        weights: How much each launch of b counts, 1 in all; alike by default.
        repeats: What repeated launches showed; None for nothing.
        candidates: Out of how many settings a was picked.
        seen: Variance of a pass where no launch has two.
    """
    weights = weights or [1 / len(b)] * len(b)
    logs = [[[math.log(v) for v in launch] for launch in side] for side in (a, b)]
    inner, freedom = 0.0, 0
    for launch in (*logs[0], *logs[1]):
        centre = fmean(launch)
        inner += sum((x - centre) ** 2 for x in launch)
        freedom += len(launch) - 1
    noise = inner / freedom if freedom else seen
    p = 1 - _ALPHA / (2 * max(candidates, 1))
    z = NormalDist().inv_cdf(p)
    squared = [w**2 for w in weights]
    launches = 1 / len(a) + sum(squared)
    if repeats is None or not repeats.freedom:
        passes = 1 / sum(map(len, a)) + sum(
            w / len(launch) for w, launch in zip(squared, b, strict=True)
        )
        t = student_t(p, freedom) if freedom else z
        square = (z * LAUNCH_NOISE) ** 2 * launches + t**2 * noise * passes
    else:
        expected = LAUNCH_NOISE**2 + noise / fmean(len(launch) for launch in (*a, *b))
        t = student_t(p, _PRIOR_FREEDOM + repeats.freedom)
        square = t**2 * _launch_variance(expected, repeats) * launches
    middle = fmean(fmean(launch) for launch in logs[0]) - sum(
        w * fmean(launch) for w, launch in zip(weights, logs[1], strict=True)
    )
    half = math.sqrt(square)
    return Interval(
        low=math.exp(middle - half), mid=math.exp(middle), high=math.exp(middle + half)
    )


def _launch_variance(expected: float, repeats: Repeats) -> float:
    """Return the variance between launches: the assumed one and what repeats showed, pooled."""
    if not repeats.freedom:
        return expected
    total = _PRIOR_FREEDOM + repeats.freedom
    return (_PRIOR_FREEDOM * expected + repeats.squares) / total


def _drift_text(moved: Trend) -> str:
    if not moved.drifted:
        return ""
    low, high = moved.swing
    return (
        f"; the node drifted ({low * 100:+.1f} to {high * 100:+.1f} % about the baseline's mean), "
        "so each launch is compared with the baseline around it"
    )


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
    if winner and base and not winner.is_confirmed:
        found.append(
            "the winner was not launched again; budget.confirm keeps launches back for that"
        )
    if winner:
        shares = [m.answers_equal_share for r in winner.records for m in r.measurements]
        known = [s for s in shares if s is not None]
        if known:
            found.append(f"{min(known):.0%} of the winner's greedy answers equal the baseline's")
    if moved.line is not None and moved.drifted:
        change = moved.line.share_per_hour * 100
        found.append(f"the baseline changed by {change:+.1f} % an hour")
    if repeats.freedom:
        found.append(
            f"launches of one setting differ by {noise:.1%} (standard deviation, from "
            f"{repeats.freedom:.0f} repeated launches and the assumed {LAUNCH_NOISE:.0%})"
        )
    found += [f"unfair: {difference}" for difference in unfair(records, study)]
    return tuple(found)


def _sentence(
    winner: Standing | None,
    base: Standing | None,
    ratio: Interval | None,
    study: Study,
    simulated: bool,
) -> str:
    mark = "SIMULATED: " if simulated else ""
    objective = study.objectives[0]
    unit = measure(objective.metric)
    if winner is None and base is None:
        return f"{mark}no setting was measured"
    if winner is None and base is not None:
        return f"{mark}only the baseline was measured: {base.values[0]:.1f} {unit}"
    assert winner is not None
    setting = point_text(winner.records[0].trial.point)
    if base is None or ratio is None:
        return f"{mark}best is {setting} at {winner.values[0]:.1f} {unit}; no baseline to compare with"
    change = (
        f"{(ratio.mid - 1) * 100:+.1f} % "
        f"(95 % interval {(ratio.low - 1) * 100:+.1f} to {(ratio.high - 1) * 100:+.1f} %)"
    )
    figures = f"{winner.values[0]:.1f} against {base.values[0]:.1f} {unit}, {change}"
    if ratio.low > 1.0:
        return f"{mark}{setting} beats the baseline: {figures}"
    if ratio.high < 1.0:
        return f"{mark}no setting beats the baseline; the nearest, {setting}, is slower: {figures}"
    return f"{mark}no setting is shown to beat the baseline; the nearest is {setting}: {figures}"


def shell_command(launch: Launch) -> str:
    """Return the whole launch command with its environment, for a shell; secrets hidden."""
    lines = [f"{name}={_word(name, value)}" for name, value in sorted(launch.env.items())]
    lines.append(" ".join(shlex.quote(redact_text(word)) for word in launch.command))
    lines.append(f"--model-path {shlex.quote(launch.model)}")
    for name, value in sorted(launch.flags.items()):
        if value is False:
            continue
        if value is True:
            lines.append(f"--{name}")
            continue
        words = value if isinstance(value, tuple) else (value,)
        lines.append(f"--{name} " + " ".join(_word(name, str(word)) for word in words))
    return " \\\n  ".join(lines)


def _word(name: str, value: str) -> str:
    return shlex.quote(HIDDEN if is_secret_name(name) else redact_text(value))
