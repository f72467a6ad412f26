"""What did not go as asked: failures, refused settings, flags the engine rewrote; pure.

(study, records, plan) -> FailureInfo, RefusedInfo, RewriteInfo
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweeper.errors import Failure, FailureClass, Fault, Stage
from sweeper.planning.families import Rule, ruled_out
from sweeper.planning.plan import Plan
from sweeper.records import FlagValue, TrialRecord, TrialState
from sweeper.redaction import HIDDEN, is_secret_name, redact_text
from sweeper.report.settings import is_simulated, setting_text
from sweeper.space import point_text

#: Points named as examples of one reason.
EXAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedClass:
    """All failures of one class.

    Attributes:
        kind: The class.
        fault: Whose fault it is.
        remedy: What a person does about it.
        stages: How far the servers had come, each once.
        trials: Numbers of the trials.
        settings: Their settings, each once, raw text.
        recovered: Numbers of the later trials in which these settings were measured.
        line: The line that shows the last one, raw text without secrets.
        log: Path of its log below the run folder; None if nothing was started.
    """

    kind: FailureClass
    fault: Fault
    remedy: str
    stages: tuple[Stage, ...]
    trials: tuple[int, ...]
    settings: tuple[str, ...]
    recovered: tuple[int, ...]
    line: str
    log: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureInfo:
    """Failures by class, the most frequent first."""

    classes: tuple[FailedClass, ...]
    simulated: bool


def failure_info(records: Sequence[TrialRecord]) -> FailureInfo:
    """Return failures by class, those of pruned and complete trials not among them."""
    groups: dict[FailureClass, list[tuple[Failure, TrialRecord]]] = {}
    measured: dict[str, list[int]] = {}
    for record in records:
        if record.state is TrialState.COMPLETE:
            measured.setdefault(record.trial.launch.key, []).append(record.trial.number)
    for record in sorted(records, key=lambda r: r.trial.number):
        if record.failure is not None:
            groups.setdefault(record.failure.kind, []).append((record.failure, record))
    classes = [
        FailedClass(
            kind=kind,
            fault=group[-1][0].policy.fault,
            remedy=group[-1][0].policy.remedy,
            stages=tuple(dict.fromkeys(f.stage for f, _ in group)),
            trials=tuple(r.trial.number for _, r in group),
            settings=tuple(dict.fromkeys(setting_text(r) for _, r in group)),
            recovered=_recovered([r for _, r in group], measured),
            line=redact_text(group[-1][0].line),
            log=group[-1][1].log,
        )
        for kind, group in groups.items()
    ]
    return FailureInfo(
        classes=tuple(sorted(classes, key=lambda c: (-len(c.trials), c.kind))),
        simulated=any(is_simulated(r) for r in records if r.failure),
    )


def _recovered(
    failed: Sequence[TrialRecord], measured: Mapping[str, Sequence[int]]
) -> tuple[int, ...]:
    """Return the first trial after each failure in which its setting was measured."""
    found = set()
    for record in failed:
        later = [n for n in measured.get(record.trial.launch.key, ()) if n > record.trial.number]
        found |= {min(later)} if later else set()
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Points refused for one reason.

    Attributes:
        reason: Why, raw text.
        count: How many points.
        examples: The first few, raw text.
    """

    reason: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedInfo:
    """Settings that were never launched.

    Attributes:
        settings: Distinct settings that could be launched.
        refused: Refused points by reason, the most frequent first.
        merged: Points that mean the same launch as another.
        complete: Whether the whole space was listed.
    """

    settings: int
    refused: tuple[Refused, ...]
    merged: int
    complete: bool


def refused_info(
    plan: Plan, records: Sequence[TrialRecord], learned: Sequence[Rule] = ()
) -> RefusedInfo:
    """Return what the plan refuses, and what the sweep learned not to launch.

    A setting that a rule covers and that was launched before the rule was known does not count.
    """
    found: dict[str, list[str]] = {
        reason: [point_text(p) for p in points] for reason, points in plan.refused.items()
    }
    launched = {record.trial.launch.key for record in records}
    for rule in learned:
        keys = ruled_out(plan.settings, (rule,)) - launched
        found[f"learned: {rule.reason}"] = [
            point_text(point) for key, (point, _) in plan.settings.items() if key in keys
        ]
    for record in records:
        if record.state is TrialState.INFEASIBLE and not record.launched and record.reason:
            texts = found.setdefault(record.reason, [])
            if setting_text(record) not in texts:
                texts.append(setting_text(record))
    return RefusedInfo(
        settings=len(plan.settings),
        refused=tuple(
            Refused(reason=reason, count=len(texts), examples=tuple(texts[:EXAMPLES]))
            for reason, texts in sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
        ),
        merged=plan.merged,
        complete=plan.complete,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """One flag that the engine set otherwise than asked.

    Attributes:
        flag: Its name without dashes.
        asked: What was asked, as text; "(not set)" where nothing was.
        effective: What the server says it runs, as text.
        trials: Numbers of the trials.
    """

    flag: str
    asked: str
    effective: str
    trials: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteInfo:
    """Flags that the engine rewrote, by flag."""

    rewrites: tuple[Rewrite, ...]
    simulated: bool


def rewrite_info(records: Sequence[TrialRecord]) -> RewriteInfo:
    """Return what was asked and what the servers said, where the two differ."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for record in sorted(records, key=lambda r: r.trial.number):
        if record.server is not None:
            for flag, (asked, effective) in record.server.rewritten.items():
                key = (flag, flag_text(flag, asked), flag_text(flag, effective))
                groups.setdefault(key, []).append(record.trial.number)
    return RewriteInfo(
        rewrites=tuple(
            Rewrite(flag=flag, asked=asked, effective=effective, trials=tuple(trials))
            for (flag, asked, effective), trials in sorted(groups.items())
        ),
        simulated=any(is_simulated(r) for r in records if r.server and r.server.rewritten),
    )


def flag_text(flag: str, value: FlagValue | None) -> str:
    """Return a flag's value as text, secrets hidden."""
    if value is None:
        return "(not set)"
    if is_secret_name(flag):
        return HIDDEN
    if isinstance(value, tuple):
        return " ".join(redact_text(str(v)) for v in value)
    return redact_text(str(value))
