"""Whether the answer can be trusted on nodes that drift, throttle, are noisy or are unlike.

A hundred whole sweeps of each kind (`trusting.py`).
"""

from collections.abc import Callable

import pytest

from tests.trusting import Node, drifting, play, study_of, swinging, throttled


@pytest.mark.slow
@pytest.mark.parametrize(
    ("node", "repeats"),
    [
        pytest.param(lambda _: Node(), 3, id="steady"),
        pytest.param(lambda _: Node(weather=drifting), 3, id="drifts by 10 %"),
        pytest.param(lambda _: Node(weather=swinging), 3, id="swings by 10 %"),
        pytest.param(lambda seed: Node(weather=throttled(seed)), 3, id="throttles"),
        pytest.param(lambda _: Node(request_sigma=0.15), 60, id="15 % noise, 300 requests"),
    ],
)
def test_the_right_setting_wins_whatever_the_node_does(
    node: Callable[[int], Node], repeats: int
) -> None:
    outcomes = play(study_of(repeats, launches=41, confirm=12), node)
    assert outcomes.right >= 95
    assert outcomes.wrong <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "node",
    [
        pytest.param(lambda _: Node(request_sigma=0.15), id="requests"),
        pytest.param(lambda _: Node(launch_sigma=0.15), id="launches"),
    ],
)
def test_too_much_noise_for_the_budget_gives_no_winner_rather_than_a_wrong_one(
    node: Callable[[int], Node],
) -> None:
    assert play(study_of(3), node).wrong <= 5


@pytest.mark.slow
@pytest.mark.parametrize("confirm", [0, 9])
@pytest.mark.parametrize(
    "node",
    [
        pytest.param(lambda _: Node(equal=True), id="steady"),
        pytest.param(lambda _: Node(equal=True, launch_sigma=0.01), id="launches differ by 1 %"),
        pytest.param(lambda _: Node(equal=True, weather=drifting), id="drifts by 10 %"),
        pytest.param(
            lambda seed: Node(equal=True, weather=throttled(seed)),
            id="throttles",
        ),
        pytest.param(lambda _: Node(equal=True, request_sigma=0.15), id="15 % noise"),
    ],
)
def test_an_equal_baseline_is_rarely_beaten(node: Callable[[int], Node], confirm: int) -> None:
    assert play(study_of(3, confirm=confirm), node).none >= 95


UNLIKE = (1.0, 1.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("node", "launches", "confirm"),
    [
        pytest.param(lambda _: Node(slots=UNLIKE), 42, 12, id="shared out"),
        pytest.param(lambda _: Node(slots=UNLIKE), 40, 9, id="on one slot"),
        pytest.param(lambda _: Node(slots=UNLIKE, weather=drifting), 42, 12, id="drift too"),
        pytest.param(lambda _: Node(slots=(1.0, 1.05, 0.97, 1.02)), 46, 12, id="four slots"),
    ],
)
def test_the_right_setting_wins_on_unlike_slots(
    node: Callable[[int], Node], launches: int, confirm: int
) -> None:
    outcomes = play(study_of(3, launches=launches, confirm=confirm), node)
    assert outcomes.right >= 95
    assert outcomes.wrong <= 1


@pytest.mark.slow
@pytest.mark.parametrize("confirm", [0, 9, 12])
@pytest.mark.parametrize(
    "node",
    [
        pytest.param(lambda _: Node(equal=True, slots=UNLIKE), id="two slots"),
        pytest.param(lambda _: Node(equal=True, slots=UNLIKE[::-1]), id="the first one slower"),
        pytest.param(
            lambda _: Node(equal=True, slots=UNLIKE, launch_sigma=0.01),
            id="launches differ by 1 %",
        ),
    ],
)
def test_a_quick_slot_is_no_quick_setting(node: Callable[[int], Node], confirm: int) -> None:
    assert play(study_of(3, confirm=confirm), node).none >= 95
