"""The answer of a study in one sentence: which setting wins, and whether it beats the baseline.

The winner is compared with the measured baseline prompt by prompt; it beats the baseline only if
the whole interval of that ratio says so.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sweeper.intervals import Interval, paired_ratio
from sweeper.objective import TIE, Standing, baseline, best, standings
from sweeper.records import Launch, RequestTiming, TrialRecord
from sweeper.redaction import HIDDEN, is_secret_name, redact_text
from sweeper.space import point_text
from sweeper.study import Study

#: Reads the requests of one trial, by number.
RequestReader = Callable[[int], Sequence[RequestTiming]]


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


def judge(
    records: Sequence[TrialRecord], study: Study, requests: RequestReader | None = None
) -> Verdict:
    """Return the verdict on all finished trials.

    Args:
        records: All records of the study.
        study: The study.
        requests: Reads a trial's requests where the records came without them.
    """
    found = standings(records, study.objectives, study.slos)
    base = baseline(found)
    winner = best(found, study.objectives)
    ratio = _ratio(winner, base, study, requests) if winner and base else None
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


def _ratio(
    winner: Standing, base: Standing, study: Study, requests: RequestReader | None
) -> Interval | None:
    objective = study.objectives[0]
    workload = objective.workload or study.workloads[0].name

    def sent(standing: Standing) -> list[RequestTiming]:
        return [
            request
            for record in standing.records
            for request in record.requests or (requests(record.trial.number) if requests else ())
            if request.workload == workload
        ]

    if objective.metric.startswith("output_tok_s"):
        paired = paired_ratio(sent(winner), sent(base), seed=study.seed)
        if paired is not None:
            return paired
    a, b = winner.values[0], base.values[0]
    if a <= 0 or b <= 0:
        return None
    middle = a / b if objective.maximize else b / a
    # Without requests there is no interval to be had; a tie's width stands in for it.
    return Interval(low=middle * (1 - TIE), mid=middle, high=middle * (1 + TIE))


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
