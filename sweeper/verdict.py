"""The answer of a study in one sentence: which setting wins, and whether it beats the baseline.

The winner is compared with the measured baseline over passes of the same prompts; it beats the
baseline only if the whole interval of that ratio says so.
"""

import math
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.intervals import Interval
from sweeper.objective import Standing, baseline, best, standings
from sweeper.records import Launch, TrialRecord
from sweeper.redaction import HIDDEN, is_secret_name, redact_text
from sweeper.space import point_text
from sweeper.study import Study

#: Relative standard deviation between launches of one setting, assumed until it is measured by
#: relaunching. Public figures: below 0.3 % for SGLang alone on a node, 1 to 3 % for others.
LAUNCH_NOISE = 0.01
_Z = 1.959964


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
    """

    sentence: str
    winner: Standing | None
    baseline: Standing | None
    ratio: Interval | None
    beats_baseline: bool
    command: str
    simulated: bool


def judge(records: Sequence[TrialRecord], study: Study) -> Verdict:
    """Return the verdict on all finished trials of a study."""
    found = standings(records, study.objectives, study.slos)
    base = baseline(found)
    winner = best(found, study.objectives)
    ratio = _ratio(winner, base, study) if winner and base else None
    better = ratio is not None and ratio.low > 1.0
    shown = winner if winner and (better or base is None) else base
    simulated = any(r.trial.launch.simulated for r in records) or study.simulated
    return Verdict(
        sentence=_sentence(winner, base, ratio, study, simulated),
        winner=winner,
        baseline=base,
        ratio=ratio,
        beats_baseline=better,
        command=shell_command(shown.records[0].trial.launch) if shown else "",
        simulated=simulated,
    )


def _ratio(winner: Standing, base: Standing, study: Study) -> Interval | None:
    """Return winner by baseline in the first objective, above 1 where the winner is better."""
    objective = study.objectives[0]

    def passes(standing: Standing) -> list[tuple[float, ...]]:
        found = []
        for record in standing.records:
            measurement = record.measurement(objective.workload)
            value = objective.value(record)
            if objective.metric == "output_tok_s" and measurement and measurement.repeats_tok_s:
                found.append(measurement.repeats_tok_s)
            elif value is not None:
                found.append((value,))
        return found

    a, b = passes(winner), passes(base)
    if min(v for launch in (*a, *b) for v in launch) <= 0:
        return None
    return launch_ratio(a, b) if objective.maximize else launch_ratio(b, a)


def launch_ratio(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> Interval:
    """Return how many times as large `a` is as `b`, with its interval.

    Each inner sequence is one launch: its passes over the same prompts. On logarithms, with na,
    nb launches and Na, Nb passes in all, the squared half width is

        z^2 LAUNCH_NOISE^2 (1/na + 1/nb) + t^2 s^2 (1/Na + 1/Nb)

    s^2 is the variance of passes about the mean of their launch, pooled over both sides, t its
    Student quantile. A launch's own noise cannot be seen in one launch, so it is assumed.
    """
    means, inner, freedom = [], 0.0, 0
    for side in (a, b):
        logs = [[math.log(v) for v in launch] for launch in side]
        centres = [statistics.fmean(launch) for launch in logs]
        means.append(statistics.fmean(centres))
        for launch, centre in zip(logs, centres, strict=True):
            inner += sum((x - centre) ** 2 for x in launch)
            freedom += len(launch) - 1
    launches = 1 / len(a) + 1 / len(b)
    passes = 1 / sum(map(len, a)) + 1 / sum(map(len, b))
    square = (_Z * LAUNCH_NOISE) ** 2 * launches
    if freedom:
        square += _student(freedom) ** 2 * inner / freedom * passes
    middle, half = means[0] - means[1], math.sqrt(square)
    return Interval(
        low=math.exp(middle - half), mid=math.exp(middle), high=math.exp(middle + half)
    )


def _student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t (Cornish-Fisher; exact to 1 % from 2 on)."""
    if freedom == 1:
        return 12.706
    if freedom == 2:
        return 4.303
    z, n = _Z, float(freedom)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def _sentence(
    winner: Standing | None,
    base: Standing | None,
    ratio: Interval | None,
    study: Study,
    simulated: bool,
) -> str:
    mark = "SIMULATED: " if simulated else ""
    objective = study.objectives[0]
    unit = objective.metric
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
