"""The search space: parameters, conditions, constraints, and the canonical form of a point.

    point = {"draft": "ours", "steps": 3, "topk": 1, "draft_tokens": 4, ...}

A parameter with a condition (`when`) is active only where it holds; elsewhere it takes the value
of `otherwise`, or is absent. The canonical point is the one in which that has been done, so two
points that differ only in an inactive parameter are the same point.
"""

import difflib
import graphlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from sweeper.errors import UserError
from sweeper.expressions import Expression
from sweeper.records import FlagValue, Point, Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One value of a parameter and what it sets.

    Attributes:
        value: The value in a point: a number, or the label of a named choice.
        flags: Flags that it sets.
        env: Variables that it sets.
    """

    value: Scalar
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One dimension of the space.

    Attributes:
        name: Its name.
        choices: Its values, at least one; the first is the default.
        flag: The flag that takes the value itself; None where choices set flags of their own.
        env: The variable that takes the value itself.
        when: Active only where this holds; always if None.
        otherwise: Value where it is not active; absent there if None.
    """

    name: str
    choices: tuple[Choice, ...]
    flag: str | None = None
    env: str | None = None
    when: Expression | None = None
    otherwise: Expression | None = None

    @property
    def values(self) -> tuple[Scalar, ...]:
        """Its values, in the order of the space file."""
        return tuple(choice.value for choice in self.choices)

    @property
    def is_numeric(self) -> bool:
        """Tell whether all values are numbers, so that their order means something."""
        return all(isinstance(v, int | float) and not isinstance(v, bool) for v in self.values)

    @property
    def needs(self) -> frozenset[str]:
        """Names of the parameters that its condition and its other value use."""
        used = frozenset[str]()
        for expression in (self.when, self.otherwise):
            if expression is not None:
                used |= expression.names
        return used

    def choice(self, value: Scalar) -> Choice:
        """Return what `value` sets; a derived value sets the parameter's own flag."""
        for choice in self.choices:
            if _same(choice.value, value):
                return choice
        return Choice(
            value=value,
            flags={self.flag: value} if self.flag else {},
            env={self.env: str(value)} if self.env else {},
        )


def _same(a: FlagValue, b: FlagValue) -> bool:
    """Tell whether two values mean the same; to Python true is 1, to a flag it is not."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


@dataclass(frozen=True)
class Space:
    """All settings that a study may try.

    Attributes:
        parameters: In the order of the space file.
        constraints: Each must hold for a point; one that names an absent parameter holds.
    """

    parameters: tuple[Parameter, ...]
    constraints: tuple[Expression, ...] = ()

    def __post_init__(self) -> None:
        known = [p.name for p in self.parameters]
        for parameter in self.parameters:
            for name in sorted(parameter.needs):
                if name not in known:
                    raise UserError(
                        f"parameter {parameter.name!r} depends on {name!r}, "
                        f"which is no parameter{suggest(name, known)}"
                    )
        for constraint in self.constraints:
            for name in sorted(constraint.names):
                if name not in known:
                    raise UserError(
                        f"constraint {constraint.text!r} names {name!r}, "
                        f"which is no parameter{suggest(name, known)}"
                    )
        _ = self.ordered

    @cached_property
    def ordered(self) -> tuple[Parameter, ...]:
        """The parameters, each after those it depends on."""
        by_name = {p.name: p for p in self.parameters}
        sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
        for parameter in self.parameters:
            sorter.add(parameter.name, *sorted(parameter.needs))
        try:
            return tuple(by_name[name] for name in sorter.static_order())
        except graphlib.CycleError as error:
            circle = " -> ".join(error.args[1])
            raise UserError(f"parameters depend on each other in a circle: {circle}") from None

    @property
    def upper_size(self) -> int:
        """The number of points if there were no conditions and constraints."""
        size = 1
        for parameter in self.parameters:
            size *= len(parameter.choices)
        return size

    def resolve(self, parameter: Parameter, partial: Point) -> tuple[bool, Scalar | None]:
        """Tell whether `parameter` is active given those before it, and its value if not.

        Returns:
            (True, None) if it is to be chosen; else (False, value), None meaning absent.
        """
        if parameter.when is None:
            return True, None
        if not parameter.when.names <= partial.keys():
            return False, None
        if parameter.when.evaluate(partial):
            return True, None
        if parameter.otherwise is None or not parameter.otherwise.names <= partial.keys():
            return False, None
        value = parameter.otherwise.evaluate(partial)
        if not isinstance(value, str | int | float | bool):
            raise UserError(
                f"'otherwise' of parameter {parameter.name!r} gives {value!r}, no plain value"
            )
        return False, value

    def canonical(self, point: Point) -> dict[str, Scalar]:
        """Return the point with inactive parameters resolved and missing ones at their default.

        Raises:
            UserError: A name or a value is not in the space.
        """
        names = [p.name for p in self.parameters]
        for name in point:
            if name not in names:
                raise UserError(f"{name!r} is no parameter{suggest(name, names)}")
        found: dict[str, Scalar] = {}
        for parameter in self.ordered:
            active, value = self.resolve(parameter, found)
            if active:
                value = point.get(parameter.name, parameter.values[0])
                if not any(_same(v, value) for v in parameter.values):
                    options = ", ".join(str(v) for v in parameter.values)
                    raise UserError(
                        f"{parameter.name!r} cannot be {value!r}; it is one of: {options}"
                        f"{suggest(str(value), [str(v) for v in parameter.values])}"
                    )
            if value is not None:
                found[parameter.name] = value
        return {name: found[name] for name in names if name in found}

    def contains(self, point: Point) -> bool:
        """Tell whether a stored point still is a canonical, permitted point of this space."""
        try:
            return self.canonical(point) == dict(point) and self.violation(point) is None
        except UserError:
            return False

    def violation(self, point: Point) -> str | None:
        """Return the text of the first constraint that `point` breaks, or None."""
        for constraint in self.constraints:
            if constraint.names <= point.keys() and not constraint.evaluate(point):
                return constraint.text
        return None

    def points(self) -> Iterator[dict[str, Scalar]]:
        """Yield each canonical point once, constraints not regarded, in a fixed order."""
        names = [p.name for p in self.parameters]
        # A stack, not a recursion: a space may have more parameters than Python has frames.
        waiting: list[tuple[int, dict[str, Scalar]]] = [(0, {})]
        while waiting:
            depth, partial = waiting.pop()
            if depth == len(self.ordered):
                yield {name: partial[name] for name in names if name in partial}
                continue
            parameter = self.ordered[depth]
            active, value = self.resolve(parameter, partial)
            options: Sequence[Scalar | None] = parameter.values if active else (value,)
            for option in reversed(options):
                extended = partial if option is None else {**partial, parameter.name: option}
                waiting.append((depth + 1, extended))

    def settings(self, point: Point) -> tuple[dict[str, FlagValue], dict[str, str]]:
        """Return the flags and variables that a canonical point sets."""
        flags: dict[str, FlagValue] = {}
        env: dict[str, str] = {}
        for parameter in self.parameters:
            if parameter.name in point:
                choice = parameter.choice(point[parameter.name])
                flags.update(choice.flags)
                env.update(choice.env)
        return flags, env

    def conflict(self, point: Point) -> str | None:
        """Return why no launch is what `point` says: two parameters set one flag unlike; or None."""
        seen: dict[tuple[str, str], tuple[str, FlagValue]] = {}
        for parameter in self.parameters:
            if parameter.name not in point:
                continue
            choice = parameter.choice(point[parameter.name])
            for kind, found in (("flag", choice.flags), ("variable", choice.env)):
                for name, value in found.items():
                    first, other = seen.setdefault((kind, name), (parameter.name, value))
                    if not _same(value, other):
                        return (
                            f"parameters {first!r} and {parameter.name!r} set the {kind} "
                            f"{name!r} to different values"
                        )
        return None

    def flag_names(self) -> frozenset[str]:
        """Return every flag that some choice sets."""
        own = {p.flag for p in self.parameters if p.flag}
        return frozenset(
            itertools.chain(own, *(choice.flags for p in self.parameters for choice in p.choices))
        )


def point_text(point: Point) -> str:
    """Return a point in one line, for people."""
    return " ".join(f"{name}={value}" for name, value in point.items()) or "baseline"


def suggest(word: str, known: Sequence[str]) -> str:
    """Return "; did you mean 'x'?" with the nearest of `known`, or an empty text."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
