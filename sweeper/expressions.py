"""Small conditions over parameter names, as space files write them. The only user of simpleeval.

Comparisons, arithmetic, `and`, `or`, `not`, `in` a list and `if else` over the names of parameters;
no calls but of three functions, no attributes, no strings multiplied without end.
"""

import ast
from collections.abc import Mapping

import simpleeval

from sweeper.errors import UserError

_FUNCTIONS = {"min": min, "max": max, "abs": abs}
MAX_LENGTH = 500


class _Evaluator(simpleeval.SimpleEval):  # type: ignore[misc]
    """Knows lists besides, for `in`; they cannot be changed, so a tuple stands for each."""

    def __init__(self, **given: object) -> None:
        super().__init__(**given)
        self.nodes |= dict.fromkeys((ast.List, ast.Tuple, ast.Set), self._listed)

    def _listed(self, node: ast.List | ast.Tuple | ast.Set) -> tuple[object, ...]:
        return tuple(self._eval(element) for element in node.elts)


class Expression:
    """A parsed expression; equal and hashable by its text.

    Raises:
        UserError: The text is no expression, or uses what the language lacks.
    """

    __slots__ = ("_parsed", "names", "text")

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        if len(self.text) > MAX_LENGTH:
            raise UserError(f"expression is longer than {MAX_LENGTH} characters")
        try:
            tree = ast.parse(self.text, mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise UserError(f"not an expression: {self.text!r}") from None
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and not (
                isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
            ):
                raise UserError(f"{self.text!r} may call only {', '.join(sorted(_FUNCTIONS))}")
            if isinstance(node, ast.Attribute | ast.Lambda | ast.Await | ast.NamedExpr):
                raise UserError(f"{self.text!r} uses what a condition may not use")
        self.names = frozenset(
            node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and node.id not in _FUNCTIONS
        )
        self._parsed: ast.expr = tree.body

    def evaluate(self, values: Mapping[str, object]) -> object:
        """Return its value.

        Raises:
            UserError: A name is missing, or the operation fails on these values.
        """
        evaluator = _Evaluator(functions=_FUNCTIONS, names=dict(values))
        try:
            return evaluator.eval(self.text, previously_parsed=self._parsed)
        except Exception as error:
            raise UserError(f"cannot work out {self.text!r}: {error}") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def __reduce__(self) -> tuple[type["Expression"], tuple[str]]:
        return Expression, (self.text,)
