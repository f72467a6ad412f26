"""Linear regression in Bayesian form: a design with priors, measurements with known noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Rows of features with the prior of their weights.

    Attributes:
        rows: Features, n x p.
        mean: Prior mean of the weights, p.
        sd: Prior standard deviation of the weights, p.
        scale: Which scale widens a weight's prior, p: 0 none, 1 factors, 2 interactions.
        names: What the column stands for, p.
    """

    rows: Array
    mean: Array
    sd: Array
    scale: NDArray[np.int64]
    names: tuple[str, ...]


class Columns:
    """Collects columns of a design; drops those that are zero in every row."""

    def __init__(self) -> None:
        self.columns: list[Array] = []
        self.rows = 0
        self.prior: list[tuple[float, float, int, str]] = []

    def add(self, name: str, column: NDArray[Any], mean: float, sd: float, scale: int = 0) -> None:
        """Add a column with the prior of its weight."""
        self.rows = len(column)
        if np.any(column):
            self.columns.append(np.asarray(column, dtype=np.float64))
            self.prior.append((mean, sd, scale, name))

    def design(self) -> Design:
        """Return the columns as a design; without any where all were zero."""
        return Design(
            rows=np.stack(self.columns, axis=1) if self.columns else np.zeros((self.rows, 0)),
            mean=np.array([p[0] for p in self.prior]),
            sd=np.array([p[1] for p in self.prior]),
            scale=np.array([p[2] for p in self.prior], dtype=np.int64),
            names=tuple(p[3] for p in self.prior),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The posterior of a Bayesian linear regression with known noise.

    Attributes:
        mean: Posterior mean of the weights, p.
        root: Lower Cholesky factor of the posterior precision, p x p.
        evidence: Log marginal likelihood of the measurements.
    """

    mean: Array
    root: Array
    evidence: float

    def draw(self, normals: Array) -> Array:
        """Return samples of the weights, n x p, from standard normals of that shape."""
        return np.asarray(self.mean + np.linalg.solve(self.root.T, normals.T).T)

    def variance(self, rows: Array) -> Array:
        """Return the posterior variance of each row's mean."""
        return np.asarray((np.linalg.solve(self.root, rows.T) ** 2).sum(axis=0))


def fit(rows: Array, values: Array, noise: Array, mean: Array, sd: Array) -> Fit:
    """Fit values = rows @ weights + noise with independent Gaussian priors on the weights.

    Args:
        rows: Features, n x p; n may be 0.
        values: Measurements, n.
        noise: Variance of each measurement, n.
        mean: Prior means, p.
        sd: Prior standard deviations, p.
    """
    return fits(rows, values, noise, mean, [sd])[0]


def fits(rows: Array, values: Array, noise: Array, mean: Array, sds: Sequence[Array]) -> list[Fit]:
    """Fit as `fit` does, once for each of several prior standard deviations."""
    weighted = rows.T / noise
    gram = weighted @ rows
    residual = values - rows @ mean
    moment = weighted @ residual
    known = residual @ (residual / noise) + np.log(noise).sum() + len(values) * np.log(2 * np.pi)
    found = []
    for sd in sds:
        root: Array = np.asarray(np.linalg.cholesky(gram + np.diag(sd**-2.0)))
        pull = np.linalg.solve(root, moment)
        evidence = -0.5 * (
            known - pull @ pull + 2 * np.log(np.diag(root)).sum() + 2 * np.log(sd).sum()
        )
        moved = np.linalg.solve(root.T, pull)
        found.append(Fit(mean=mean + moved, root=root, evidence=float(evidence)))
    return found
