"""The chance that a setting can work at all, from the settings that could not. Pure."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from sweeper.records import Point, Scalar
from sweeper.speculation import Array

#: A cause: one value of a parameter, or two together.
Cause = frozenset[tuple[str, Scalar]]
#: Beta(a, b) prior of the chance that a cause makes a launch fail: a by its number of values, b.
#: A cause either hardly matters or nearly always does, so a + b is well below 1.
PRIOR_A = {1: 0.05, 2: 0.01}
PRIOR_B = 0.2
ROUNDS = 20


def chance_to_work(
    points: Sequence[Point], failed: Sequence[Point], fine: Sequence[Point]
) -> Array:
    """Return for each of `points` the chance that a launch does not fail by its own fault.

    Each value of a parameter, and each pair of values, is a possible cause that makes a launch
    fail on its own (a noisy or, fitted by expectation maximisation). A cause's chance falls with
    every launch that had it and worked.
    """
    causes = sorted({c for point in failed for c in _causes(point)}, key=_order)
    if not causes:
        return np.ones(len(points))
    prior = np.array([PRIOR_A[len(c)] for c in causes])
    worked = _incidence(fine, causes).sum(axis=0)
    blamed = _incidence(failed, causes)
    seen = worked + blamed.sum(axis=0)
    chance = prior / (prior + PRIOR_B + worked)
    for _ in range(ROUNDS):
        # The chance that this cause struck, given that one of the launch's causes did.
        share = blamed * chance / (1 - np.exp(blamed @ np.log1p(-chance)))[:, None]
        chance = (prior + share.sum(axis=0)) / (prior + PRIOR_B + seen)
    has = _incidence(points, causes)
    return np.asarray(np.exp(has @ np.log1p(-chance)))


def _causes(point: Point) -> Iterator[Cause]:
    items = sorted(point.items())
    for item in items:
        yield frozenset({item})
    for pair in itertools.combinations(items, 2):
        yield frozenset(pair)


def _order(cause: Cause) -> tuple[int, list[str]]:
    return len(cause), sorted(f"{name}={value!r}" for name, value in cause)


def _incidence(points: Sequence[Point], causes: Sequence[Cause]) -> Array:
    """Return points x causes: 1 where the point has the cause."""
    items = sorted({item for cause in causes for item in cause}, key=repr)
    place = {item: i for i, item in enumerate(items)}
    has = np.zeros((len(points), len(items)))
    for i, point in enumerate(points):
        for item in point.items():
            if item in place:
                has[i, place[item]] = 1.0
    found = np.ones((len(points), len(causes)))
    for c, cause in enumerate(causes):
        for item in cause:
            found[:, c] *= has[:, place[item]]
    return found
