import pickle

import pytest

from sweeper.errors import UserError
from sweeper.expressions import Expression


def test_an_expression_knows_its_names_and_its_value() -> None:
    expression = Expression("draft_tokens <= 1 + topk + (steps - 1) * topk ** 2")
    assert expression.names == {"draft_tokens", "topk", "steps"}
    assert expression.evaluate({"draft_tokens": 37, "topk": 4, "steps": 3}) is True
    assert expression.evaluate({"draft_tokens": 38, "topk": 4, "steps": 3}) is False


def test_an_expression_survives_pickling() -> None:
    expression = Expression("max(steps, 2) + 1")
    assert pickle.loads(pickle.dumps(expression)) == expression


@pytest.mark.parametrize(
    "text",
    [
        "steps.real",
        "__import__('os').system('true')",
        "(lambda: 1)()",
        "1 +",
        "(y := 2)",
        "().__class__",
        "open('x')",
        "x" * 501,
        "",
    ],
)
def test_what_the_language_lacks_is_refused_before_it_is_evaluated(text: str) -> None:
    with pytest.raises(UserError):
        Expression(text)


@pytest.mark.parametrize("text", ["9 ** 9 ** 9 ** 9", "'a' * 10 ** 9", "1 / 0", "missing + 1"])
def test_an_evaluation_that_fails_or_would_not_end_is_a_users_mistake(text: str) -> None:
    with pytest.raises(UserError):
        Expression(text).evaluate({})


@pytest.mark.parametrize("text", ["x in [1, 2, y]", "x in (1, 2, y)", "x in {1, 2, y}"])
def test_a_value_may_be_looked_for_in_a_list(text: str) -> None:
    assert Expression(text).evaluate({"x": 4, "y": 4}) is True
    assert Expression(text).evaluate({"x": 4, "y": 3}) is False
    assert Expression(text.replace(" in ", " not in ")).evaluate({"x": 4, "y": 3}) is True


@pytest.mark.parametrize("text", ["(1, 2) * 10 ** 9", "[*x]", "[y for y in x]", "(1 / 0,)"])
def test_a_list_holds_no_more_than_is_written(text: str) -> None:
    with pytest.raises(UserError):
        Expression(text).evaluate({"x": "abc"})
