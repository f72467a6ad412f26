"""Which setting to launch next, from joint samples of all of them. Pure.

    chance of best   share of samples in which the setting is within a tie of the best one
    knowledge        expected rise of the best posterior mean by one launch, in log units
    hypervolume      expected growth of the volume that the measured settings dominate

All are gains of one launch; the caller divides by its price.
"""

import numpy as np
from numpy.typing import NDArray

from sweeper.speculation import Array

Mask = NDArray[np.bool_]

#: Settings whose logs differ by less are a tie: 1 %, as in `objective.TIE`.
TIE = 0.01
#: Settings that the knowledge gradient looks at, best first.
KNOWLEDGE_SETTINGS = 80
#: Quantiles of the normal distribution that stand for the outcome of a launch.
_OUTCOMES = np.array([-1.645, -1.036, -0.674, -0.385, -0.126, 0.126, 0.385, 0.674, 1.036, 1.645])
#: Points of the box in which volume is measured, and settings that are looked at.
VOLUME_POINTS, VOLUME_SETTINGS, VOLUME_DRAWS = 256, 400, 64


def chance_of_best(gains: Array, feasible: Mask) -> Array:
    """Return for each setting the chance that it is within a tie of the best feasible one.

    Args:
        gains: Log of the objective, larger is better, samples x settings.
        feasible: Whether the setting keeps all limits in that sample.
    """
    allowed = np.where(feasible, gains, -np.inf)
    top = allowed.max(axis=1, keepdims=True)
    return np.asarray((allowed >= top - TIE).mean(axis=0) * np.isfinite(top).mean())


def knowledge(gains: Array, feasible: Mask, noise: float) -> Array:
    """Return the knowledge gradient of one launch of each setting, 0 where it is not worth asking.

    The samples' mean and covariance stand for a Gaussian posterior; the outcome of a launch moves
    the mean of setting i by cov(i, c) / sd(c) for each sd of surprise.
    """
    chance = feasible.mean(axis=0)
    mean = gains.mean(axis=0) + np.log(np.maximum(chance, 1e-6))
    upper = mean + gains.std(axis=0)
    chosen = np.argsort(-upper, kind="stable")[:KNOWLEDGE_SETTINGS]
    centred = gains[:, chosen] - gains[:, chosen].mean(axis=0)
    covariance = centred.T @ centred / max(len(gains) - 1, 1)
    slope = covariance / np.sqrt(np.diag(covariance) + noise**2 + 1e-12)
    # outcomes x settings whose mean moves x settings launched
    moved = mean[chosen][None, :, None] + _OUTCOMES[:, None, None] * slope[None, :, :]
    found = np.zeros(gains.shape[1])
    found[chosen] = np.maximum(moved.max(axis=1).mean(axis=0) - mean[chosen].max(), 0.0)
    return found


def hypervolume(
    gains: tuple[Array, ...], feasible: Mask, launched: Mask, rng: np.random.Generator
) -> Array:
    """Return the expected growth of the dominated volume by each setting, as share of a box.

    The front is each sample's own, over launched settings, so noise in what was measured is
    taken into account. The box spans the means of the settings that may be on the front.

    Args:
        gains: Log of each objective, larger is better, samples x settings.
        feasible: Whether the setting keeps all limits in that sample.
        launched: Whether the setting was measured.
        rng: Where the points of the box come from.
    """
    draws = slice(0, VOLUME_DRAWS)
    means = np.stack([g.mean(axis=0) for g in gains], axis=1)
    spread = np.stack([g.std(axis=0) for g in gains], axis=1)
    upper = means + spread
    scaled = (upper - upper.mean(axis=0)) / (upper.std(axis=0) + 1e-12)
    # Looked at: the best by several weightings, so that both ends of the front are among them.
    order = np.concatenate(
        [np.argsort(-scaled @ w, kind="stable") for w in _weightings(len(gains))], axis=0
    ).reshape(-1, len(means))
    chosen = np.unique(order[:, : max(VOLUME_SETTINGS // len(order), 1)])
    low = _floor(means, launched)
    high = np.maximum(upper[chosen].max(axis=0), low + 1e-6)
    box = low + rng.random((VOLUME_POINTS, len(gains))) * (high - low)
    covers = [
        np.logical_and.reduce([g[draws][:, rows, None] >= box[:, k] for k, g in enumerate(gains)])
        & feasible[draws][:, rows, None]
        for rows in (np.flatnonzero(launched), chosen)
    ]
    front = covers[0].any(axis=1)
    found = np.zeros(len(means))
    found[chosen] = (covers[1] & ~front[:, None, :]).mean(axis=(0, 2))
    return found


def _weightings(objectives: int) -> Array:
    ends = 0.05 + 0.95 * np.eye(objectives)
    return np.vstack([ends, np.ones((1, objectives)), 0.5 * (ends + 1 / objectives)])


def _floor(means: Array, launched: Mask) -> Array:
    """Return the corner below which volume does not count: a quarter below the launched front.

    Nearer to the front, its two ends would be worth nothing.
    """
    rows = means[launched] if launched.any() else means
    better = (rows[:, None, :] >= rows[None, :, :]).all(axis=2) & (
        rows[:, None, :] > rows[None, :, :]
    ).any(axis=2)
    front = rows[~better.any(axis=0)]
    low = front.min(axis=0)
    return np.asarray(low - 0.25 * (front.max(axis=0) - low) - 0.02)


def chance_of_better(gains: Array, feasible: Mask, launched: Mask, misfit: float) -> float:
    """Return the chance that a setting not launched beats all launched ones by more than a tie.

    Args:
        gains: Log of the objective, larger is better, samples x settings.
        feasible: Whether the setting keeps all limits in that sample.
        launched: Whether the setting was measured.
        misfit: Factor on the spread of the samples; above 1 where the model errs more than it
            should.
    """
    if launched.all():
        return 0.0
    mean = gains.mean(axis=0)
    wider = np.where(launched, gains, mean + misfit * (gains - mean))
    allowed = np.where(feasible, wider, -np.inf)
    rest = allowed[:, ~launched].max(axis=1)
    seen = allowed[:, launched].max(axis=1) if launched.any() else np.full(len(gains), -np.inf)
    return float(np.mean(rest > seen + TIE))
