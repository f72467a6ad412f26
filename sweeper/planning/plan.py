"""What a study could launch: distinct settings, and points refused before any start; pure."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweeper.errors import UserError
from sweeper.records import Launch, Point
from sweeper.study import Study

#: Spaces with more points than this are not listed; a sampler works on their parameters.
LISTED_POINTS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of a study, each once.

    Attributes:
        settings: Launch key -> (first point that means it, launch), in the order of the space.
        refused: Reason -> the points refused for it.
        merged: Points that mean a setting which another point means already.
        complete: Whether the whole space was listed.
    """

    settings: Mapping[str, tuple[Point, Launch]]
    refused: Mapping[str, tuple[Point, ...]]
    merged: int
    complete: bool


def make_plan(study: Study) -> Plan:
    """List what `study` could launch.

    Raises:
        UserError: Not one setting is left.
    """
    settings: dict[str, tuple[Point, Launch]] = {}
    refused: dict[str, list[Point]] = {}
    merged = 0
    points = study.space.points()
    for point in itertools.islice(points, LISTED_POINTS):
        reason = _broken(study, point)
        if reason is not None:
            refused.setdefault(reason, []).append(point)
            continue
        launch = study.launch(point)
        reason = study.refuse(launch)
        if reason is not None:
            refused.setdefault(reason, []).append(point)
        elif (key := launch.key) in settings:
            merged += 1
        else:
            settings[key] = (point, launch)
    complete = next(points, None) is None
    return _plan(settings, refused, merged=merged, complete=complete)


def without(plan: Plan, reasons: Mapping[str, str]) -> Plan:
    """Return the plan less some settings.

    Args:
        plan: The plan.
        reasons: Launch key -> why it is refused after all.

    Raises:
        UserError: Not one setting is left.
    """
    settings = dict(plan.settings)
    refused = {reason: list(points) for reason, points in plan.refused.items()}
    for key, reason in reasons.items():
        if key in settings:
            point, _ = settings.pop(key)
            refused.setdefault(reason, []).append(point)
    return _plan(settings, refused, merged=plan.merged, complete=plan.complete)


def _plan(
    settings: Mapping[str, tuple[Point, Launch]],
    refused: Mapping[str, Sequence[Point]],
    *,
    merged: int,
    complete: bool,
) -> Plan:
    if not settings:
        reasons = Counter({reason: len(found) for reason, found in refused.items()})
        worst, count = reasons.most_common(1)[0]
        where, what = (
            ("of the space", "points") if complete else ("that was looked at", "first points")
        )
        raise UserError(
            f"no setting {where} can be launched: {sum(reasons.values())} {what}, "
            f"all refused; {count} of them because: {worst}"
        )
    return Plan(
        settings=settings,
        refused={reason: tuple(found) for reason, found in refused.items()},
        merged=merged,
        complete=complete,
    )


def refusal(study: Study, point: Point) -> str | None:
    """Return why a canonical point is not launched, or None."""
    return _broken(study, point) or study.refuse(study.launch(point))


def _broken(study: Study, point: Point) -> str | None:
    """Return what of the space itself a point breaks, or None."""
    broken = study.space.violation(point)
    return study.space.conflict(point) if broken is None else f"constraint: {broken}"
