"""Rules learned from failures: which settings are not launched again, and why; pure.

    a draft that does not fit          -> that draft with that algorithm, whatever its shape
    a draft that is not there          -> that draft
    out of memory                      -> settings at least as large, otherwise equal
    KV pool too small                  -> settings with no larger share of memory, otherwise equal
    several settings that fail alike   -> what they have in common and nothing that worked has

A rule never covers a setting that came further than the failure that it is made of. One failure
is enough where the cause is plain; elsewhere two rule out all that agrees with both in every
parameter which they share, and three rule out the smallest explanation.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeGuard

from sweeper.errors import Failure, FailureClass, Fault, Stage
from sweeper.records import FlagValue, Launch, Point, Scalar, TrialRecord, TrialState
from sweeper.redaction import is_secret_name, redact_value
from sweeper.speculation.shape import ALGORITHM, DRAFT_PATH, DRAFT_TOKENS, STEPS, TOPK, shape_of
from sweeper.study import Study

#: Flags and variables that begin so say how a draft is loaded.
_DRAFT_FLAGS, _DRAFT_ENV = "speculative-draft-", "SWEEPER_DRAFT_"
_FRACTION = "mem-fraction-static"
#: Flags of which more takes more GPU memory, and their names for people.
_SIZES = {
    DRAFT_TOKENS: "draft tokens",
    STEPS: "steps",
    TOPK: "top-k",
    "cuda-graph-max-bs": "graph batch",
    "cuda-graph-max-bs-decode": "graph batch",
    _FRACTION: "memory fraction",
}
#: Distinct settings that must have failed alike; more for what chance may have caused.
_FEWEST, _FEWEST_BY_CHANCE, _ENOUGH = 2, 3, 3
_BY_CHANCE = frozenset(
    {
        FailureClass.CRASH_KERNEL,
        FailureClass.HANG,
        FailureClass.START_TIMEOUT,
        FailureClass.WATCHDOG,
    }
)
#: Parameters that one explanation may name.
_MOST_CONDITIONS = 3
_STAGES = tuple(Stage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A family of settings that is not launched again.

    Attributes:
        reason: A sentence for people: the family, and the trials that showed it.
        kind: The class of those failures.
        trials: Numbers of the trials.
        applies: Tells whether a setting, as point and launch, is of the family.
    """

    reason: str
    kind: FailureClass
    trials: tuple[int, ...]
    applies: Callable[[Point, Launch], bool]


@dataclass(frozen=True, slots=True)
class _Condition:
    name: str
    relation: str
    value: Scalar

    def holds(self, point: Point) -> bool:
        value = point.get(self.name)
        if self.relation == "=":
            return value == self.value and isinstance(value, bool) == isinstance(self.value, bool)
        if not (_is_number(value) and _is_number(self.value)):
            return False
        return value >= self.value if self.relation == ">=" else value <= self.value

    def __str__(self) -> str:
        return f"{self.name} {self.relation} {self.value}"


@dataclass(frozen=True, slots=True)
class _Failed:
    """A failed trial, and its failure."""

    record: TrialRecord
    failure: Failure

    @property
    def number(self) -> int:
        return self.record.trial.number


def rules(records: Iterable[TrialRecord], study: Study) -> tuple[Rule, ...]:
    """Return what the failures among `records` teach, in the order of the trials."""
    ordered = sorted(records, key=lambda r: r.trial.number)
    failed = [
        _Failed(record, record.failure)
        for record in ordered
        if record.failure is not None and record.failure.policy.fault is not Fault.MACHINE
    ]
    found: dict[str, Rule] = {}
    for one in failed:
        for rule in (_draft_rule(one), _memory_rule(one)):
            if rule is not None and not _is_contradicted(rule, one.failure.stage, ordered):
                found.setdefault(rule.reason, rule)
    for group in _alike(failed):
        rule = _common_rule(group, ordered, study)
        if rule is not None:
            found.setdefault(rule.reason, rule)
    return tuple(sorted(found.values(), key=lambda rule: rule.trials))


def ruled_out(settings: Mapping[str, tuple[Point, Launch]], found: Sequence[Rule]) -> set[str]:
    """Return the keys of those settings that a rule covers.

    Args:
        settings: Launch key -> (point, launch), as in a plan.
        found: The rules.
    """
    if not found:
        return set()
    return {key for key, (point, launch) in settings.items() if covered(point, launch, found)}


def covered(point: Point, launch: Launch, found: Iterable[Rule]) -> Rule | None:
    """Return the first rule that covers a setting, or None."""
    return next((rule for rule in found if rule.applies(point, launch)), None)


#: Stages until both models are there.
_LOADING = frozenset({Stage.ARGS, Stage.IMPORT, Stage.DIST_INIT, Stage.LOAD, Stage.DRAFT_LOAD})


def _draft_rule(one: _Failed) -> Rule | None:
    launch, failure = one.record.trial.launch, one.failure
    draft = launch.flags.get(DRAFT_PATH)
    misfit = failure.kind is FailureClass.DRAFT_INCOMPATIBLE and ALGORITHM in launch.flags
    if misfit and not _may_be_its_tree(one):
        identity = _draft_identity(launch)
        return Rule(
            reason=(
                f"draft {draft or '(none given)'} as {launch.flags[ALGORITHM]} does not fit "
                f"(trial {one.number}: {failure.line})"
            ),
            kind=failure.kind,
            trials=(one.number,),
            applies=lambda _, other: _draft_identity(other) == identity,
        )
    if failure.kind is FailureClass.MODEL_MISSING and isinstance(draft, str):
        rest = failure.line.replace(draft, "")
        if rest == failure.line or launch.model in rest:
            return None
        return Rule(
            reason=f"draft {draft} is not there (trial {one.number}: {failure.line})",
            kind=failure.kind,
            trials=(one.number,),
            applies=lambda _, other: other.flags.get(DRAFT_PATH) == draft,
        )
    return None


def _may_be_its_tree(one: _Failed) -> bool:
    """Tell whether the shape of a tree may be what failed: all is loaded, a chain may work."""
    shape = shape_of(one.record.trial.launch.flags)
    return shape is not None and shape.is_tree and one.failure.stage not in _LOADING


def _draft_identity(launch: Launch) -> list[tuple[str, FlagValue]]:
    """Return all that decides whether a draft can be loaded beside its target."""
    chosen: list[tuple[str, FlagValue]] = [(ALGORITHM, launch.flags.get(ALGORITHM, ""))]
    chosen += [(k, v) for k, v in launch.flags.items() if k.startswith(_DRAFT_FLAGS)]
    chosen += [(k, v) for k, v in launch.env.items() if k.startswith(_DRAFT_ENV)]
    return sorted(chosen, key=lambda pair: pair[0])


def _memory_rule(one: _Failed) -> Rule | None:
    launch, failure = one.record.trial.launch, one.failure
    up: tuple[str, ...] = ()
    down: tuple[str, ...] = ()
    if failure.kind is FailureClass.OOM:
        up = tuple(_SIZES)
        family = "as large or larger"
    elif failure.kind is FailureClass.KV_POOL_TOO_SMALL:
        down = (_FRACTION,)
        family = "as small a memory fraction or a smaller one"
    else:
        return None
    rest = _rest(launch, {*up, *down})

    def applies(_: Point, other: Launch) -> bool:
        return (
            all(_reaches(other.flags.get(f), launch.flags.get(f)) for f in up)
            and all(_reaches(launch.flags.get(f), other.flags.get(f)) for f in down)
            and _rest(other, {*up, *down}) == rest
        )

    sizes = [f"{_SIZES[f]} {launch.flags[f]}" for f in (*up, *down) if f in launch.flags]
    return Rule(
        reason=(
            f"{family} than in trial {one.number} ({', '.join(sizes) or 'no size is set'}), "
            f"otherwise equal: {failure.kind} at {failure.stage}"
        ),
        kind=failure.kind,
        trials=(one.number,),
        applies=applies,
    )


def _reaches(value: FlagValue | None, bound: FlagValue | None) -> bool:
    """Tell whether `value` is at least `bound`; what the engine decides is equal to itself only."""
    if _is_number(value) and _is_number(bound):
        return value >= bound
    return value == bound


def _rest(launch: Launch, without: set[str]) -> tuple[dict[str, FlagValue], dict[str, str]]:
    """Return flags and variables but those; secrets do not count, stored rows hide them."""
    flags = {
        k: _redacted(v) if isinstance(v, str) else v
        for k, v in launch.flags.items()
        if k not in without and not _is_secret(k)
    }
    return flags, {k: _redacted(v) for k, v in launch.env.items() if not _is_secret(k)}


_is_secret, _redacted = cache(is_secret_name), cache(redact_value)


def _alike(failed: Sequence[_Failed]) -> Iterator[list[_Failed]]:
    """Yield the failures of the same class, stage and line, each setting once."""
    groups: dict[tuple[FailureClass, Stage, str], dict[str, _Failed]] = {}
    for one in failed:
        if one.record.trial.point:
            line = re.sub(r"[\d.]+", "#", one.failure.line)
            group = groups.setdefault((one.failure.kind, one.failure.stage, line), {})
            group.setdefault(one.record.trial.launch.key, one)
    for (kind, _, _), group in groups.items():
        if len(group) >= (_FEWEST_BY_CHANCE if kind in _BY_CHANCE else _FEWEST):
            yield list(group.values())


def _common_rule(
    group: Sequence[_Failed], records: Sequence[TrialRecord], study: Study
) -> Rule | None:
    """Return the rule that several failures of one kind are explained by, if there is one."""
    failure = group[0].failure
    fine = [r.trial.point for r in records if r.trial.point and _got_past(r, failure.stage)]
    common = list(_common_conditions([one.record.trial.point for one in group], study))
    chosen = common if len(group) < _ENOUGH else _smallest(common, fine)
    if not chosen or any(all(c.holds(point) for c in chosen) for point in fine):
        return None
    numbers = tuple(one.number for one in group)
    return Rule(
        reason=(
            f"{' and '.join(str(c) for c in chosen)}: {failure.kind} at {failure.stage} in "
            f"trials {', '.join(str(n) for n in numbers)}, none worked"
        ),
        kind=failure.kind,
        trials=numbers,
        applies=lambda point, _: all(c.holds(point) for c in chosen),
    )


def _common_conditions(points: Sequence[Point], study: Study) -> Iterator[_Condition]:
    for parameter in study.space.parameters:
        values = [point.get(parameter.name) for point in points]
        given = [value for value in values if value is not None]
        if len(given) < len(values):
            continue
        if len(set(given)) == 1:
            yield _Condition(parameter.name, "=", given[0])
            continue
        numbers = [value for value in given if _is_number(value)]
        if len(numbers) == len(given):
            yield _Condition(parameter.name, ">=", min(numbers))
            yield _Condition(parameter.name, "<=", max(numbers))


def _smallest(common: Sequence[_Condition], fine: Sequence[Point]) -> list[_Condition]:
    """Return the fewest conditions that no point which worked fulfils together.

    Where several such sets are equally small, nobody knows which is the cause, and all of them
    together are asked for.
    """
    for size in range(1, _MOST_CONDITIONS + 1):
        sets = [
            chosen
            for chosen in itertools.combinations(common, size)
            if not any(all(c.holds(point) for c in chosen) for point in fine)
        ]
        if sets:
            return [c for c in common if any(c in chosen for chosen in sets)]
    return []


def _is_contradicted(rule: Rule, stage: Stage, records: Iterable[TrialRecord]) -> bool:
    return any(
        _got_past(record, stage) and rule.applies(record.trial.point, record.trial.launch)
        for record in records
    )


def _got_past(record: TrialRecord, stage: Stage) -> bool:
    """Tell whether a trial came further than a failure at `stage`."""
    if record.state in (TrialState.COMPLETE, TrialState.PRUNED):
        return True
    failure = record.failure
    return failure is not None and _STAGES.index(failure.stage) > _STAGES.index(stage)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
