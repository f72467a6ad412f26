"""A draft that each GPU runs alone takes its whole weights there."""

import pytest

from sweeper.engines.simulated.calibrations import KIMI_LATER
from sweeper.engines.simulated.flags import parse
from sweeper.engines.simulated.memory import plan_memory
from sweeper.engines.simulated.resolve import resolve

DRAFTED = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/models/d"]


def test_a_copy_on_each_gpu_takes_the_room_of_the_pool() -> None:
    resolved = resolve(parse(["--model-path", "/m", "--tp-size", "8", *DRAFTED]), KIMI_LATER)
    shared, alone = (plan_memory(KIMI_LATER, resolved, draft_tp=size) for size in (None, 1))
    more_gb = alone.draft_gb - shared.draft_gb
    assert alone.draft_gb == pytest.approx(8 * shared.draft_gb)
    assert alone.kv_gb == pytest.approx(shared.kv_gb - more_gb)
    assert alone.kv_tokens < shared.kv_tokens
    assert alone.needed_fraction > shared.needed_fraction


def test_two_gpus_that_share_a_draft_hold_a_half_each() -> None:
    resolved = resolve(parse(["--model-path", "/m", "--tp-size", "8", *DRAFTED]), KIMI_LATER)
    shared, pairs, alone = (
        plan_memory(KIMI_LATER, resolved, draft_tp=size).draft_gb for size in (8, 2, 1)
    )
    assert (pairs, alone) == pytest.approx((4 * shared, 8 * shared))


def test_without_a_draft_nothing_is_added() -> None:
    resolved = resolve(parse(["--model-path", "/m", "--tp-size", "8"]), KIMI_LATER)
    assert plan_memory(KIMI_LATER, resolved, draft_tp=1) == plan_memory(KIMI_LATER, resolved)
