"""The settings of a plan as the model sees them: one row each, and one for the baseline."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sweeper.planning.plan import Plan
from sweeper.records import FlagValue, Launch, Point, Scalar
from sweeper.space import Parameter
from sweeper.speculation import GRAPHS_OFF, SHAPE_FLAGS, Factor, Setting, Shape, shape_of
from sweeper.study import Study

#: Label of a level that has none of a parameter's values, nor a number beside them.
UNSET = "(not set)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All rows that the model knows.

    Attributes:
        keys: Launch key of each row; the plan's settings first, in the plan's order.
        points: Point of each row; empty for a baseline that is no setting of the plan.
        settings: What the model looks at, a row.
        factors: What `Setting.levels` index.
        shapes: The distinct shapes.
        arm: Index into `shapes` of each row; -1 without speculation.
        plan_rows: Number of rows that may be proposed; they come first.
        row: Launch key -> row.
    """

    keys: tuple[str, ...]
    points: tuple[Point, ...]
    settings: tuple[Setting, ...]
    factors: tuple[Factor, ...]
    shapes: tuple[Shape, ...]
    arm: tuple[int, ...]
    plan_rows: int
    row: Mapping[str, int] = field(repr=False)

    @property
    def speculates(self) -> bool:
        """Whether any row speculates."""
        return bool(self.shapes)


def make_table(study: Study, plan: Plan) -> Table:
    """Return the table of a plan and its study's baseline."""
    launches = [launch for _, launch in plan.settings.values()]
    points: list[Point] = [point for point, _ in plan.settings.values()]
    baseline = study.baseline_launch()
    if baseline.key not in plan.settings:
        launches.append(baseline)
        points.append({})
    found = [
        made
        for parameter in study.space.parameters
        if (made := _factor(parameter, launches, points)) is not None
    ]
    settings = tuple(
        Setting(
            shape=shape_of(launch.flags),
            levels=tuple(factor.levels.index(_level(launch, at)) for factor, at in found),
        )
        for launch in launches
    )
    shapes = tuple(dict.fromkeys(s.shape for s in settings if s.shape))
    place = {shape: i for i, shape in enumerate(shapes)}
    keys = tuple(launch.key for launch in launches)
    return Table(
        keys=keys,
        points=tuple(points),
        settings=settings,
        factors=tuple(factor for factor, _ in found),
        shapes=shapes,
        arm=tuple(place[s.shape] if s.shape else -1 for s in settings),
        plan_rows=len(plan.settings),
        row={key: i for i, key in enumerate(keys)},
    )


#: Flags and variables that a factor sets, in a fixed order.
_Places = tuple[tuple[str, ...], tuple[str, ...]]


def _level(launch: Launch, places: _Places) -> tuple[object, ...]:
    flags, env = places
    return (*(launch.flags.get(name) for name in flags), *(launch.env.get(name) for name in env))


def _factor(
    parameter: Parameter, launches: Sequence[Launch], points: Sequence[Point]
) -> tuple[Factor, _Places] | None:
    """Return the factor that a parameter is, besides what it says of the shape.

    Levels are read from canonical launches, so choices that the engine makes equal are one level,
    and the baseline, which is no point, has a level too.
    """
    flags = {name for choice in parameter.choices for name in choice.flags} - SHAPE_FLAGS
    env = {name for choice in parameter.choices for name in choice.env}
    places = (tuple(sorted(flags)), tuple(sorted(env)))
    labels: dict[tuple[object, ...], Scalar] = {}
    for launch, point in zip(launches, points, strict=True):
        level = _level(launch, places)
        if level not in labels:
            named = parameter.name in point
            labels[level] = point[parameter.name] if named else _elsewhere(parameter, level)
    if len(labels) < 2:
        return None
    levels = list(labels)
    words = [label for label in labels.values() if not isinstance(label, int | float)]
    # Of words beside the numbers only one can be told apart from them.
    numeric = parameter.is_numeric and words in ([], [UNSET])
    if numeric:
        levels.sort(key=lambda level: _number(labels[level]))
    off = [i for i, level in enumerate(levels) if _graphs_off(level, places[0])]
    return (
        Factor(
            name=parameter.name,
            levels=tuple(levels),
            labels=tuple(labels[level] for level in levels),
            numeric=numeric,
            unset=numeric and bool(words),
            graphs_off=off[0] if off else None,
        ),
        places,
    )


def _elsewhere(parameter: Parameter, level: tuple[object, ...]) -> Scalar:
    """Return the label of a level that is none of the parameter's values.

    It is a baseline's, or one of points for which the parameter does not count.
    """
    (only,) = level if len(level) == 1 else (None,)
    if not parameter.is_numeric or not isinstance(only, int | float | str) or only is True:
        return UNSET
    try:
        number = float(only)
    except ValueError:
        return UNSET
    # A negative number among others turns something off, as `chunked-prefill-size: -1` does.
    is_switch = number < 0 <= min(float(value) for value in parameter.values)
    return number if math.isfinite(number) and not is_switch else UNSET


def _number(label: Scalar) -> float:
    return math.inf if label == UNSET else float(label)


def _graphs_off(level: tuple[object, ...], flags: Sequence[str]) -> bool:
    pairs: list[tuple[str, FlagValue]] = [
        (name, value)
        for name, value in zip(flags, level, strict=False)
        if isinstance(value, str | bool)
    ]
    return any(pair in GRAPHS_OFF for pair in pairs)
