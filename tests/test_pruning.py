import math
from collections.abc import Sequence

import numpy as np
import pytest

from sweeper.judging.pruning import Rival, certainly_worse, rival_of
from sweeper.records import RequestTiming
from sweeper.statistics.trend import LAUNCH_NOISE


def requests(speeds: Sequence[Sequence[float]]) -> list[RequestTiming]:
    """Return a request of 100 tokens for each pass and prompt, at its speed."""
    return [
        RequestTiming(
            workload="single",
            repeat=repeat,
            prompt_id=str(prompt),
            prompt_kind="chat",
            sent_ns=0,
            first_ns=1,
            last_ns=round(100 / speed * 1e9),
            output_tokens=100,
        )
        for repeat, row in enumerate(speeds)
        for prompt, speed in enumerate(row)
    ]


BEST = [[90.0, 60.0, 120.0, 75.0, 100.0]] * 3


def rival(confidence: float = 0.999) -> Rival:
    return rival_of(requests(BEST), "single", confidence)


@pytest.mark.parametrize(
    ("factor", "worse"), [(0.8, True), (0.97, False), (1.0, False), (1.2, False)]
)
def test_only_what_is_far_slower_prompt_by_prompt_is_stopped(factor: float, worse: bool) -> None:
    mine = requests([[speed * factor for speed in row] for row in BEST[:1]])
    assert certainly_worse(mine, rival()) is worse


def test_unequal_prompts_do_not_hide_a_slower_setting() -> None:
    assert np.std(BEST[0]) > 0.2 * np.mean(BEST[0])
    assert certainly_worse(requests([[s * 0.9 for s in BEST[0]]]), rival())


def test_without_enough_pairs_nothing_is_stopped() -> None:
    assert not certainly_worse(requests([[10.0, 10.0]]), rival())
    assert not certainly_worse(requests(BEST), rival_of([], "single", 0.999))


def test_a_node_that_moved_needs_a_wider_lead() -> None:
    mine = requests([[s * 0.9 for s in BEST[0]]])
    moved = Rival(workload="single", confidence=0.999, speeds=rival().speeds, slack=0.1)
    assert not certainly_worse(mine, moved)


def test_equal_settings_are_stopped_less_often_than_the_confidence_allows() -> None:
    random = np.random.default_rng(0)

    def launch() -> list[RequestTiming]:
        own = math.exp(random.normal(0, LAUNCH_NOISE))
        return requests(
            [[s * own * math.exp(random.normal(0, 0.03)) for s in row] for row in BEST[:1]]
        )

    stopped = sum(
        certainly_worse(launch(), rival_of(launch(), "single", 0.95)) for _ in range(300)
    )
    assert stopped <= 15


def test_a_steady_setting_is_not_stopped_for_a_rival_that_is_quick_on_some_prompts_only() -> None:
    """By the mean of logarithms it is a sixth slower, by tokens a second 4 % faster."""
    erratic, steady = [[240.0, 60.0] * 40] * 5, [[100.0] * 80] * 5
    total = rival_of(requests(erratic), "single", 0.999)
    assert not certainly_worse(requests(steady), total)
    slower = requests([[s * 0.85 for s in row] for row in steady])
    assert certainly_worse(slower, total)


def test_the_number_that_decides_is_the_objectives_own() -> None:
    """Most streams are quicker than the rival's, though the slow ones take most of the time."""
    rival_speeds, mine = [[100.0] * 40] * 5, [[106.0] * 22 + [20.0] * 18] * 5
    assert certainly_worse(requests(mine), rival_of(requests(rival_speeds), "single", 0.999))
    user = rival_of(requests(rival_speeds), "single", 0.999, "output_tok_s_per_user")
    assert not certainly_worse(requests(mine), user)
