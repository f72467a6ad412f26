"""The cost model against the history's figures, and its shape."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.engines.simulated.calibrations import (
    CALIBRATIONS,
    KIMI_FIRST,
    KIMI_LATER,
    KINDS,
    SMALL,
    Calibration,
)
from sweeper.engines.simulated.cost import (
    Nccl,
    Setting,
    accept_length,
    draft_ms,
    nccl_factors,
    request_s,
    step_ms,
    survival,
    tok_s,
    tree_survival,
)
from sweeper.engines.simulated.noise import Drift, accepted, draws, launch_factor
from sweeper.engines.simulated.setting import tree_limit

RING_LL = Nccl(algo="RING", proto="LL")


def spec(steps: int, topk: int, tokens: int, draft: str = "ours", **more: object) -> Setting:
    fields: dict[str, object] = {"steps": steps, "topk": topk, "draft_tokens": tokens, **more}
    return Setting(draft=draft, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_a_draft_that_fewer_gpus_share_computes_more_and_sends_less(tp: int) -> None:
    sizes = [size for size in (1, 2, 4, 8) if size <= tp]
    silent = replace(KIMI_LATER, draft_comm_ms=0.0)
    work = [draft_ms(silent, spec(3, 1, 4, tp=tp, draft_tp=size)) for size in sizes]
    assert work == sorted(work, reverse=True)
    whole = spec(3, 1, 4, tp=tp)
    assert draft_ms(KIMI_LATER, whole) == draft_ms(KIMI_LATER, replace(whole, draft_tp=tp))


FIGURES = [
    (KIMI_FIRST, Setting(), 90.0),
    (KIMI_FIRST, spec(3, 4, 16, graphs=False), 53.2),
    (KIMI_FIRST, spec(3, 4, 5, graphs=False), 53.2),
    (KIMI_FIRST, spec(3, 4, 16), 74.9),
    (KIMI_FIRST, spec(3, 4, 5), 82.3),
    (KIMI_FIRST, spec(2, 4, 5), 81.7),
    (KIMI_FIRST, spec(3, 4, 5, "aq-medai", graphs=False), 50.5),
    (KIMI_LATER, Setting(), 90.0),
    (KIMI_LATER, spec(5, 1, 6), 71.3),
    (KIMI_LATER, spec(2, 1, 3, nccl=RING_LL), 94.0),
]


@pytest.mark.parametrize(("cal", "setting", "wanted"), FIGURES)
def test_the_history_s_speeds_are_met_within_three_percent(
    cal: Calibration, setting: Setting, wanted: float
) -> None:
    by_prompt = [500 / request_s(cal, setting, kind) for kind in KINDS]
    assert tok_s(cal, setting) == pytest.approx(wanted, rel=0.03)
    assert sum(by_prompt) / len(by_prompt) == pytest.approx(wanted, rel=0.03)


@pytest.mark.parametrize(
    ("cal", "setting", "slowest", "fastest"),
    [
        (KIMI_FIRST, spec(3, 4, 5), 75.6, 101.8),
        (KIMI_LATER, spec(5, 1, 6), 66.0, 75.3),
        (KIMI_LATER, spec(3, 1, 4, "wrong-layers"), 46.7, 54.8),
    ],
)
def test_the_history_s_spread_over_prompts_is_met(
    cal: Calibration, setting: Setting, slowest: float, fastest: float
) -> None:
    speeds = [500 / request_s(cal, setting, kind) for kind in KINDS]
    assert min(speeds) == pytest.approx(slowest, rel=0.03)
    assert max(speeds) == pytest.approx(fastest, rel=0.03)


@pytest.mark.parametrize(
    ("cal", "setting", "low", "high"),
    [
        (KIMI_FIRST, spec(3, 4, 16), 2.1, 2.5),
        (KIMI_FIRST, spec(3, 4, 5, "aq-medai"), 1.8, 2.1),
        (KIMI_LATER, spec(5, 1, 6), 2.0, 2.6),
        (KIMI_LATER, spec(3, 1, 4, "wrong-layers"), 1.19, 1.3),
        (SMALL, spec(1, 1, 2), 1.55, 1.65),
        (SMALL, spec(3, 1, 4), 2.15, 2.25),
        (SMALL, spec(5, 1, 6), 2.35, 2.45),
    ],
)
def test_the_history_s_accept_lengths_are_met(
    cal: Calibration, setting: Setting, low: float, high: float
) -> None:
    mean = sum(accept_length(cal, setting, kind) for kind in KINDS) / len(KINDS)
    assert low <= mean <= high


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        (Setting(), 419.0),
        (spec(1, 1, 2), 477.0),
        (spec(3, 1, 4), 684.0),
        (spec(5, 1, 6), 650.0),
        (spec(3, 4, 8), 678.0),
        (spec(3, 1, 4, tp=2, nccl=Nccl(algo="RING", proto="SIMPLE")), 415.0),
    ],
)
def test_the_small_model_s_speeds_are_met_within_five_percent(
    setting: Setting, wanted: float
) -> None:
    assert tok_s(SMALL, setting, output_tokens=400) == pytest.approx(wanted, rel=0.05)


def _space() -> Iterator[Setting]:
    ncclses = [
        Nccl(),
        *(Nccl(algo=a, proto=p) for a in ("RING", "TREE") for p in ("LL", "SIMPLE")),
    ]
    shapes = [(s, 1, s + 1) for s in range(1, 6)] + [
        (s, k, d)
        for s in range(1, 6)
        for k in (2, 4, 8)
        for d in (2, 3, 4, 5, 6, 8, 16, 32)
        if d <= tree_limit(s, k)
    ]
    for draft, (s, k, d), graphs, nccl, one in itertools.product(
        ("ours", "aq-medai"), shapes, (True, False), ncclses, (False, True)
    ):
        yield spec(s, k, d, draft, graphs=graphs, nccl=nccl, draft_tp=1 if one else None)


def test_one_setting_is_best_and_every_other_is_at_least_two_and_a_half_percent_slower() -> None:
    speeds = {setting: tok_s(KIMI_LATER, setting) for setting in _space()}
    best = max(speeds, key=speeds.__getitem__)
    assert best == spec(2, 1, 3, graphs=True, nccl=RING_LL, draft_tp=None)
    assert speeds.pop(best) == pytest.approx(94.0, rel=0.01)
    assert max(speeds.values()) < 94.0 * 0.975


def test_only_nccl_lifts_speculation_over_the_baseline() -> None:
    assert tok_s(KIMI_LATER, spec(2, 1, 3)) == pytest.approx(86.5, rel=0.01)
    baseline = tok_s(KIMI_LATER, Setting())
    assert tok_s(KIMI_LATER, Setting(nccl=RING_LL)) == baseline
    assert tok_s(KIMI_LATER, spec(2, 1, 3, nccl=RING_LL)) > baseline


def test_an_eagle3_draft_under_eagle_yields_exactly_one_token_a_step() -> None:
    assert accept_length(KIMI_LATER, spec(3, 1, 4, matches=False), "code") == 1.0


shapes = st.tuples(st.integers(1, 6), st.sampled_from([1, 2, 4, 8]), st.integers(2, 32))
calibrations = st.sampled_from(sorted(CALIBRATIONS)).map(CALIBRATIONS.__getitem__)


@given(calibrations, shapes, st.sampled_from(KINDS), st.floats(0.5, 2.0))
def test_survival_falls_with_depth_and_holds_no_more_than_the_tree(
    cal: Calibration, shape: tuple[int, int, int], kind: str, exponent: float
) -> None:
    chances = survival(cal, spec(*shape), kind, exponent)
    assert len(chances) == shape[0]
    assert all(1 >= a >= b >= 0 for a, b in itertools.pairwise((1.0, *chances)))
    assert math.fsum(chances) <= min(shape[0], shape[2] - 1) + 1e-9


@given(calibrations, shapes, st.sampled_from(KINDS))
def test_a_larger_tree_never_accepts_less(
    cal: Calibration, shape: tuple[int, int, int], kind: str
) -> None:
    steps, topk, tokens = shape
    small = accept_length(cal, spec(steps, topk, tokens), kind)
    assert accept_length(cal, spec(steps, topk, tokens + 1), kind) >= small - 1e-12


@given(calibrations, shapes, st.integers(1, 64))
def test_a_step_costs_more_with_each_request_and_without_graphs(
    cal: Calibration, shape: tuple[int, int, int], batch: int
) -> None:
    setting = spec(*shape)
    assert step_ms(cal, setting, batch + 1) > step_ms(cal, setting, batch)
    assert step_ms(cal, setting, batch, in_graph=False) > step_ms(cal, setting, batch)


@given(st.integers(1, 6), st.sampled_from([1, 2, 4, 8]))
def test_the_best_tree_is_no_better_than_all_candidates(steps: int, topk: int) -> None:
    accept = (0.6,) * steps
    everything = tree_survival(accept, 0.12, 0.5, topk=topk, nodes=tree_limit(steps, topk) - 1)
    assert everything == tree_survival(accept, 0.12, 0.5, topk=topk, nodes=10_000)


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_drawn_steps_have_the_model_s_accept_length(noise: float) -> None:
    chances = survival(KIMI_LATER, spec(5, 1, 6), "code")
    source = draws("seed", noise)
    mean = sum(accepted(chances, next(source)) for _ in range(8000)) / 8000
    assert mean == pytest.approx(math.fsum(chances), rel=0.02)


def test_nccl_names_without_an_entry_get_a_factor_between_the_known() -> None:
    latency, volume = nccl_factors(Nccl(algo="COLLNETCHAIN", proto="LL", channels=8))
    assert 0.5 < latency < 1.5
    assert volume == 2.0


def test_a_relaunch_gets_fresh_noise_and_none_at_noise_zero() -> None:
    first, again, other = (launch_factor(1, name, 1.0) for name in ("a", "a", "b"))
    assert first == again != other
    assert launch_factor(1, "a", 0.0) == 1.0


def test_drift_grows_linearly_or_swings() -> None:
    linear = Drift(per_hour=0.01, origin_unix_s=1000.0)
    assert linear.factor(1000.0 + 360.0, time_scale=20.0) == pytest.approx(1.02)
    swing = Drift(amplitude=0.02)
    factors = [swing.factor(t * 100.0, time_scale=1.0) for t in range(200)]
    assert max(factors) == pytest.approx(1.02, abs=1e-3)
    assert min(factors) == pytest.approx(0.98, abs=1e-3)
