"""The model behind the search: shapes, acceptance, step time, and the fit."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.records import FlagValue, Scalar
from sweeper.speculation import (
    MAX_POSITIONS,
    Array,
    Factor,
    Setting,
    Shape,
    acceptance_design,
    fit,
    lengths,
    shape_of,
    step_design,
)

CHAINS = tuple(Shape(draft="d", steps=s, topk=1, draft_tokens=s + 1) for s in range(1, 7))
DEPTHS = [s.depth for s in CHAINS]
NCCL = Factor(name="nccl", levels=(("a",), ("b",), ("c",)), labels=("a", "b", "c"))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, None),
        ({"speculative-num-steps": 3}, None),
        ({"speculative-algorithm": "EAGLE3"}, (3, 1, 4)),
        ({"speculative-algorithm": "EAGLE3", "speculative-num-steps": "5"}, (5, 1, 6)),
        (
            {
                "speculative-algorithm": "EAGLE3",
                "speculative-num-steps": 2,
                "speculative-eagle-topk": 4,
                "speculative-num-draft-tokens": 8,
            },
            (2, 4, 8),
        ),
        ({"speculative-algorithm": "NGRAM", "speculative-num-draft-tokens": 12}, (11, 1, 12)),
    ],
)
def test_a_shape_is_read_from_flags(
    flags: dict[str, FlagValue], expected: tuple[int, int, int] | None
) -> None:
    shape = shape_of(flags)
    assert (shape and (shape.steps, shape.topk, shape.draft_tokens)) == expected


def test_two_drafts_have_two_names() -> None:
    flags: dict[str, FlagValue] = {"speculative-algorithm": "EAGLE3"}
    one = shape_of({**flags, "speculative-draft-model-path": "/models/one"})
    two = shape_of({**flags, "speculative-draft-model-path": "/models/two"})
    assert one is not None
    assert two is not None
    assert one.draft != two.draft


def histogram_logits(chances: list[float], steps: float) -> tuple[Array, Array]:
    """Return logits and their variances for conditional chances seen in `steps` steps."""
    at_risk = steps * np.cumprod([1.0, *chances[:-1]])
    chance = np.array(chances)
    return np.log(chance / (1 - chance)), 1 / (at_risk * chance * (1 - chance))


def test_one_long_chain_tells_the_accept_length_of_all_shorter_ones() -> None:
    design, index = acceptance_design(CHAINS, 1)
    chances = [0.7, 0.6, 0.55, 0.5, 0.45, 0.4]
    rows = np.flatnonzero(index[:, 0] == len(CHAINS) - 1)
    logits, variance = histogram_logits(chances, 20_000.0)
    found = fit(design.rows[rows], logits, variance, design.mean, design.sd)
    predicted = lengths((design.rows @ found.mean)[None], index, DEPTHS, 1, np.ones(1))[0]
    true = [1 + float(np.cumprod(chances[: s.steps]).sum()) for s in CHAINS]
    assert predicted == pytest.approx(true, rel=0.02)


def test_the_length_over_prompt_kinds_is_their_harmonic_mean() -> None:
    design, index = acceptance_design(CHAINS[:1], 2)
    assert len(design.rows) == 2
    logits = np.array([[np.log(0.5 / 0.5), np.log(0.9 / 0.1)]])
    found = lengths(logits, index, DEPTHS[:1], 2, np.array([0.5, 0.5]))
    assert found[0, 0] == pytest.approx(1 / (0.5 / 1.5 + 0.5 / 1.9))


@given(st.lists(st.floats(-6, 6), min_size=21, max_size=21))
def test_a_length_lies_between_one_and_all_drafted(values: list[float]) -> None:
    _, index = acceptance_design(CHAINS, 1)
    found = lengths(np.array([values]), index, DEPTHS, 1, np.ones(1))[0]
    assert all(1 <= x <= s.draft_tokens for x, s in zip(found, CHAINS, strict=True))
    # The same chance at the same position: a longer chain is never shorter in accept length.
    same = np.array([values[int(j)] for j in index[:, 2]])[None]
    grown = lengths(same, index, DEPTHS, 1, np.ones(1))[0]
    assert all(b >= a for a, b in itertools.pairwise(grown))


def test_positions_beyond_the_last_modelled_one_do_no_harm() -> None:
    long = Shape(draft="d", steps=16, topk=1, draft_tokens=17)
    design, index = acceptance_design([long], 1)
    assert len(index) == MAX_POSITIONS
    assert np.isfinite(design.rows).all()


@pytest.mark.parametrize("depth", [1, MAX_POSITIONS, MAX_POSITIONS + 1, 15])
def test_a_chain_longer_than_what_is_modelled_goes_on_as_it_ended(depth: int) -> None:
    chances = {"code": 0.9, "chat": 0.5}
    long = Shape(draft="d", steps=depth, topk=1, draft_tokens=depth + 1)
    _, index = acceptance_design([CHAINS[0], long], 2)
    logits = np.array([[math.log(c / (1 - c)) for c in chances.values()]])[:, index[:, 1]]
    found = lengths(logits, index, [1, depth], 2, np.array([0.5, 0.5]))[0]
    by_kind = [sum(c**i for i in range(depth + 1)) for c in chances.values()]
    assert found[1] == pytest.approx(1 / sum(0.5 / x for x in by_kind))


def steps_world() -> tuple[list[Setting], Array]:
    """Return settings and log step times that the features can express."""
    shapes = [None, *CHAINS]
    settings = [Setting(shape=s, levels=(v,)) for s in shapes for v in range(3)]
    times = [
        np.log(11.0)
        + (0.4 + 0.1 * s.shape.steps if s.shape else 0.0)
        + (0.0, -0.08, 0.05)[s.levels[0]]
        for s in settings
    ]
    return settings, np.array(times)


def test_a_few_step_times_predict_the_rest() -> None:
    settings, truth = steps_world()
    design = step_design(settings, [NCCL], physical=True)
    seen = [0, 1 * 3 + 1, 4 * 3 + 0, 6 * 3 + 2, 2 * 3 + 1, 5 * 3 + 0]
    level = truth[seen].mean()
    found = fit(
        design.rows[seen], truth[seen] - level, np.full(6, 0.005**2), design.mean, design.sd
    )
    error = design.rows @ found.mean + level - truth
    assert np.abs(error).max() < 0.10
    # What was not seen is less sure than what was, and the truth is within its doubt.
    sd = np.sqrt(found.variance(design.rows))
    assert sd[seen].max() < np.delete(sd, seen).max()
    assert np.all(np.abs(error) < 3.5 * sd + 0.01)


@given(
    st.integers(1, 12),
    st.integers(1, 6),
    st.integers(0, 2**31 - 1),
)
def test_the_fit_is_the_gaussian_posterior_and_its_evidence(n: int, p: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, values = rng.normal(size=(n, p)), rng.normal(size=n)
    noise, mean, sd = rng.uniform(0.1, 2, n), rng.normal(size=p), rng.uniform(0.2, 3, p)
    found = fit(rows, values, noise, mean, sd)
    # By the joint covariance of weights and values, conditioned.
    covariance = rows @ np.diag(sd**2) @ rows.T + np.diag(noise)
    gain = np.diag(sd**2) @ rows.T @ np.linalg.inv(covariance)
    residual = values - rows @ mean
    assert found.mean == pytest.approx(mean + gain @ residual, rel=1e-6, abs=1e-8)
    expected = -0.5 * (
        residual @ np.linalg.solve(covariance, residual)
        + np.linalg.slogdet(covariance)[1]
        + n * np.log(2 * np.pi)
    )
    assert found.evidence == pytest.approx(float(expected), rel=1e-6, abs=1e-6)
    exact = np.diag(sd**2) - gain @ rows @ np.diag(sd**2)
    assert found.variance(np.eye(p)) == pytest.approx(np.diag(exact), rel=1e-6, abs=1e-8)


def test_without_measurements_the_fit_is_the_prior() -> None:
    settings, _ = steps_world()
    design = step_design(settings, [NCCL], physical=True)
    found = fit(design.rows[:0], np.zeros(0), np.zeros(0), design.mean, design.sd)
    assert found.mean == pytest.approx(design.mean)
    draws = found.draw(np.random.default_rng(0).standard_normal((4000, len(design.mean))))
    assert draws.std(axis=0) == pytest.approx(design.sd, rel=0.1)


@pytest.mark.parametrize("unset", [False, True])
def test_neighbouring_levels_of_a_number_are_alike(unset: bool) -> None:
    labels: tuple[Scalar, ...] = (1, 2, 3, 4, 5, "(not set)")[: 5 + unset]
    levels = tuple((v,) for v in labels)
    factor = Factor(name="chunk", levels=levels, labels=labels, numeric=True, unset=unset)
    settings = [Setting(shape=None, levels=(v,)) for v in range(len(levels))]
    design = step_design(settings, [factor], physical=False)
    # The last number is not seen: it lies by its neighbour.
    seen = {0: 0.0, 3: 0.15} | ({5: 1.0} if unset else {})
    found = fit(
        design.rows[list(seen)],
        np.array(list(seen.values())),
        np.full(len(seen), 1e-6),
        design.mean,
        design.sd,
    )
    between = design.rows @ found.mean
    assert list(between[:5]) == sorted(between[:5])
    # A baseline without the number lies apart, and moves none of them.
    assert between[4] == pytest.approx(0.15, abs=0.01)


def test_a_shape_that_can_accept_nothing_has_no_features() -> None:
    """N-grams with one draft token verify the sure token alone."""
    flags: dict[str, FlagValue] = {"speculative-algorithm": "NGRAM"}
    shape = shape_of({**flags, "speculative-num-draft-tokens": 1})
    assert shape is not None
    assert shape.depth == 0
    design, index = acceptance_design([shape], 1)
    assert design.rows.shape == (0, 0)
    assert index.shape == (0, 3)
    nothing = np.zeros((5, 0))
    assert lengths(nothing, index, [0], 1, np.ones(1)) == pytest.approx(np.ones((5, 1)))
