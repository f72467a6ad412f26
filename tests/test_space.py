import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.errors import UserError
from sweeper.expressions import Expression
from sweeper.records import Scalar
from sweeper.space import Choice, Parameter, Space


def numbers(name: str, *values: int, **more: Expression) -> Parameter:
    return Parameter(
        name=name,
        flag=name,
        choices=tuple(Choice(value=v, flags={name: v}) for v in values),
        **more,  # type: ignore[arg-type]
    )


SPACE = Space(
    parameters=(
        numbers("steps", 1, 2, 3),
        numbers("tokens", 2, 4, 8, when=Expression("topk > 1"), otherwise=Expression("steps + 1")),
        numbers("topk", 1, 2, 4),
        numbers("window", 64, 128, when=Expression("topk == 4")),
    ),
    constraints=(Expression("tokens <= 1 + topk + (steps - 1) * topk ** 2"),),
)


def test_an_inactive_parameter_takes_its_other_value_or_is_absent() -> None:
    assert SPACE.canonical({"steps": 3, "topk": 1, "tokens": 8}) == {
        "steps": 3,
        "tokens": 4,
        "topk": 1,
    }


def test_missing_parameters_take_the_first_of_their_values() -> None:
    assert SPACE.canonical({}) == {"steps": 1, "tokens": 2, "topk": 1}


def test_points_are_canonical_and_each_there_once() -> None:
    points = list(SPACE.points())
    assert len(points) == 3 + 3 * 3 + 3 * 3 * 2
    assert all(SPACE.canonical(p) == p for p in points)
    assert len({tuple(p.items()) for p in points}) == len(points)


@given(
    st.fixed_dictionaries(
        {
            "steps": st.sampled_from([1, 2, 3]),
            "topk": st.sampled_from([1, 2, 4]),
            "tokens": st.sampled_from([2, 4, 8]),
            "window": st.sampled_from([64, 128]),
        }
    )
)
def test_the_canonical_form_of_a_canonical_point_is_itself(point: dict[str, Scalar]) -> None:
    once = SPACE.canonical(point)
    assert SPACE.canonical(once) == once
    assert once in list(SPACE.points())


def test_a_derived_value_sets_the_flag_although_it_is_no_choice() -> None:
    flags, _ = SPACE.settings(SPACE.canonical({"steps": 2, "topk": 1}))
    assert flags == {"steps": 2, "tokens": 3, "topk": 1}


def test_a_broken_constraint_is_named() -> None:
    point = SPACE.canonical({"steps": 1, "topk": 2, "tokens": 8})
    assert SPACE.violation(point) == "tokens <= 1 + topk + (steps - 1) * topk ** 2"
    assert not SPACE.contains(point)


def test_a_constraint_on_an_absent_parameter_holds() -> None:
    space = Space(parameters=SPACE.parameters, constraints=(Expression("window > 1000"),))
    assert space.violation(space.canonical({"topk": 1})) is None
    assert space.violation(space.canonical({"topk": 4})) == "window > 1000"


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"step": 1}, "did you mean 'steps'"),
        ({"steps": 4}, "it is one of: 1, 2, 3"),
        ({"topk": "two"}, "'topk' cannot be 'two'"),
    ],
)
def test_a_point_outside_the_space_is_refused_by_name(
    point: dict[str, Scalar], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        SPACE.canonical(point)


def test_a_space_may_have_more_parameters_than_python_has_frames() -> None:
    space = Space(parameters=tuple(numbers(f"p{i}", 1, 2) for i in range(1200)))
    first, second = itertools.islice(space.points(), 2)
    assert set(first.values()) == {1}
    assert second == {**first, space.ordered[-1].name: 2}


def test_a_circle_of_conditions_is_refused() -> None:
    a = numbers("a", 1, when=Expression("b > 0"))
    b = numbers("b", 1, when=Expression("a > 0"))
    with pytest.raises(UserError, match="circle"):
        Space(parameters=(a, b))


def test_an_unknown_name_in_a_constraint_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'steps'"):
        Space(parameters=SPACE.parameters, constraints=(Expression("stepps > 1"),))


def test_true_and_one_are_different_values() -> None:
    parameter = Parameter(
        name="p",
        choices=(Choice(value=1, flags={"n": 1}), Choice(value=True, flags={"n": True})),
        flag="n",
    )
    assert parameter.choice(True).flags == {"n": True}
    assert parameter.choice(1).flags == {"n": 1}
