"""What the trials so far make the model believe of every setting: joint samples of each target.

    histograms  --fit-->  acceptance weights  -->  accept length of each shape
    log target less its share of log length  --fit-->  weights of the step time and factors
    both  -->  DRAWS samples of log target, one column a setting

Prior widths of factors and interactions are averaged over a grid, each point weighted by its
marginal likelihood. A setting that was measured also has an own deviation, so that what was seen
counts where the features do not fit it.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeper.sampler.evidence import Evidence, Target
from sweeper.sampler.histograms import histograms, seen_lengths, shares, survival
from sweeper.sampler.table import Table
from sweeper.speculation import (
    Array,
    Design,
    acceptance_design,
    fit,
    lengths,
    step_design,
)

#: Joint samples; the chance of 5 % that stops a sweep is then known to about 1.6 points.
DRAWS = 192
#: (scale of factors, scale of interactions, prior weight). Wide ones are for landscapes that
#: the features do not fit; they win only by their evidence.
SCALES = tuple(
    (main, inter, p * q)
    for main, p in ((0.25, 0.3), (0.5, 0.4), (1.0, 0.3))
    for inter, q in ((0.25, 0.35), (0.5, 0.4), (1.0, 0.2), (2.0, 0.05))
)
#: Prior of the noise of one launch (relative sd) and how many repeats it is worth.
NOISE_PRIOR, NOISE_WEIGHT = 0.010, 4.0
#: Own deviation of a setting: in log step time at interaction scale 1, and in log length.
SETTING_SD, SETTING_LENGTH_SD = 0.006, 0.006
#: Widths that a factor's effect on log accept length may have, equally likely beforehand.
LENGTH_EFFECT_SDS = (0.001, 0.01, 0.04)


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """Joint samples over all rows of the table.

    Attributes:
        logs: Log of each target, samples x rows, in the order of the targets.
        noise: Relative sd of one launch, a target.
        misfit: Root mean square of the standardised leave-one-out errors, at least 1, a target.
        seen: Number of measured rows, a target.
    """

    logs: tuple[Array, ...]
    noise: tuple[float, ...]
    misfit: tuple[float, ...]
    seen: tuple[int, ...]


class Model:
    """The fixed part: features of every row, made once."""

    def __init__(self, table: Table, targets: Sequence[Target]) -> None:
        self.table = table
        self.targets = tuple(targets)
        self._acceptance = functools.lru_cache(maxsize=4)(
            functools.partial(acceptance_design, table.shapes)
        )
        self._steps = functools.lru_cache(maxsize=2)(self._step_design)

    def _step_design(self, physical: bool) -> Design:
        table = self.table
        known = physical and table.speculates
        return step_design(
            table.settings, table.factors, physical=known, factor_sd=0.06 if known else 0.10
        )

    @functools.cached_property
    def price_design(self) -> Design:
        """Features of the log of a launch's price, with weak priors."""
        return step_design(self.table.settings, self.table.factors, physical=False)

    def believe(self, evidence: Sequence[Evidence], rng: np.random.Generator) -> Belief:
        """Return the belief after `evidence`, whose keys are all in the table."""
        rows = [_Rows.of(self.table, evidence, i) for i in range(len(self.targets))]
        workloads = {t.workload for t in self.targets}
        log_length = {w: self._log_lengths(evidence, w, rng) for w in sorted(workloads)}
        logs, noise, misfit = [], [], []
        for target, seen in zip(self.targets, rows, strict=True):
            samples, sigma, ratio = self._target(target, seen, log_length[target.workload], rng)
            logs.append(samples)
            noise.append(sigma)
            misfit.append(ratio)
        return Belief(
            logs=tuple(logs),
            noise=tuple(noise),
            misfit=tuple(misfit),
            seen=tuple(len(r.row) for r in rows),
        )

    def _log_lengths(
        self, evidence: Sequence[Evidence], workload: str, rng: np.random.Generator
    ) -> "_Lengths":
        """Return samples of the log accept length of each row, and what was measured of it."""
        table, count = self.table, len(self.table.keys)
        zero = np.zeros((DRAWS, count))
        if not table.speculates:
            return _Lengths(samples=zero, seen={})
        totals = histograms(table, evidence, workload)
        kinds = sorted({kind for _, kind in totals}) or [""]
        design, index = self._acceptance(len(kinds))
        where = {(int(a), int(c), int(j)): i for i, (a, c, j) in enumerate(index)}
        picked, values, noise = [], [], []
        for (arm, kind), histogram in totals.items():
            for j, at_risk, accepted in survival(histogram):
                row = where.get((arm, kinds.index(kind), j))
                if row is not None:
                    lost = at_risk - accepted
                    picked.append(row)
                    values.append(np.log((accepted + 0.5) / (lost + 0.5)))
                    noise.append(1 / (accepted + 0.5) + 1 / (lost + 0.5) + 0.02**2)
        fitted = fit(
            design.rows[picked], np.array(values), np.array(noise), design.mean, design.sd
        )
        weights = fitted.draw(rng.standard_normal((DRAWS, len(design.mean))))
        found = lengths(
            weights @ design.rows.T, index, len(table.shapes), len(kinds), shares(totals, kinds)
        )
        arms = np.array(table.arm)
        spec = np.flatnonzero(arms >= 0)
        samples = zero
        samples[:, spec] = np.log(found)[:, arms[spec]]
        seen = seen_lengths(table, evidence, workload)
        samples[:, spec] += self._factors_in_length(samples, seen, rng)[:, spec]
        own = np.where(arms >= 0, SETTING_LENGTH_SD, 0.0) * rng.standard_normal((DRAWS, count))
        for row, (value, variance) in seen.items():
            # The row's own deviation, given what was measured of it.
            share = SETTING_LENGTH_SD**2 / (SETTING_LENGTH_SD**2 + variance)
            own[:, row] = own[:, row] * np.sqrt(1 - share) + share * (value - samples[:, row])
        return _Lengths(samples=samples + own, seen=seen)

    def _factors_in_length(
        self, samples: Array, seen: Mapping[int, tuple[float, float]], rng: np.random.Generator
    ) -> Array:
        """Return what factors do to log accept length, samples x rows: nothing, by the model.

        By timing they may still do something (which kernel sums in which order decides near-ties),
        so effects of a width from a grid are fitted to what the shapes leave over.
        """
        design = self._steps(True)
        columns = design.scale == 1
        rows = sorted(seen)
        if not rows or not columns.any():
            return np.zeros(samples.shape)
        features = design.rows[:, columns]
        left = np.array([seen[r][0] for r in rows]) - samples[:, rows].mean(axis=0)
        noise = np.array([seen[r][1] for r in rows]) + SETTING_LENGTH_SD**2
        zero = np.zeros(features.shape[1])
        fits = [fit(features[rows], left, noise, zero, zero + sd) for sd in LENGTH_EFFECT_SDS]
        parts = allot(np.array([f.evidence for f in fits]), DRAWS)
        drawn = [
            f.draw(rng.standard_normal((part, len(zero))))
            for f, part in zip(fits, parts, strict=True)
        ]
        effects = np.concatenate(drawn)[rng.permutation(DRAWS)]
        return np.asarray(effects @ features.T)

    def _target(
        self, target: Target, seen: "_Rows", length: "_Lengths", rng: np.random.Generator
    ) -> tuple[Array, float, float]:
        a, b = target.law
        design = self._steps(target.physical)
        share = a * np.array([length.value(row) for row in seen.row.tolist()])
        sigma = seen.sigma()
        values = b * (seen.mean - share) if len(seen.row) else seen.mean
        spread = np.array([(a * length.doubt(row)) ** 2 for row in seen.row.tolist()])
        noise = sigma**2 / seen.count + spread
        level = float(np.mean(values)) if len(values) else 0.0
        rows = design.rows[seen.row]
        fits, weights = [], []
        for main, inter, prior in SCALES:
            scale = np.array([1.0, main, inter])[design.scale]
            own = (SETTING_SD * max(inter, 1.0)) ** 2
            fitted = fit(rows, values - level, noise + own, design.mean, design.sd * scale)
            fits.append((fitted, own))
            weights.append(np.log(prior) + fitted.evidence)
        parts = allot(np.array(weights), DRAWS)
        samples = np.empty((DRAWS, len(self.table.keys)))
        start = 0
        for (fitted, own), part in zip(fits, parts, strict=True):
            if not part:
                continue
            drawn = fitted.draw(rng.standard_normal((part, len(design.mean))))
            block = drawn @ design.rows.T
            deviation = np.sqrt(own) * rng.standard_normal(block.shape)
            kept = own / (own + noise)
            deviation[:, seen.row] = deviation[:, seen.row] * np.sqrt(1 - kept) + kept * (
                values - level - block[:, seen.row]
            )
            samples[start : start + part] = block + deviation + level
            start += part
        best, own = fits[int(np.argmax(weights))]
        variance = noise + own
        error = values - level - rows @ best.mean
        left = np.maximum(1 - best.variance(rows) / variance, 0.02)
        wrong = float(np.sqrt(np.mean(error**2 / (variance * left)))) if len(values) > 5 else 1.0
        return a * length.samples + b * samples, sigma, max(wrong, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lengths:
    """Samples of log accept length, samples x rows; row -> what was measured: log, variance."""

    samples: Array
    seen: dict[int, tuple[float, float]]

    def value(self, row: int) -> float:
        return self.seen[row][0] if row in self.seen else float(self.samples[:, row].mean())

    def doubt(self, row: int) -> float:
        return 0.0 if row in self.seen else float(self.samples[:, row].std())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Mean log of one target over the launches of each measured row."""

    row: NDArray[np.int64]
    mean: Array
    count: Array
    squares: float

    @classmethod
    def of(cls, table: Table, evidence: Sequence[Evidence], target: int) -> "_Rows":
        found: dict[int, list[float]] = {}
        for item in evidence:
            value = item.values[target]
            if value is not None:
                found.setdefault(table.row[item.key], []).append(float(np.log(value)))
        rows = sorted(found)
        means = [float(np.mean(found[r])) for r in rows]
        return cls(
            row=np.array(rows, dtype=np.int64),
            mean=np.array(means),
            count=np.array([float(len(found[r])) for r in rows]),
            squares=sum((v - m) ** 2 for r, m in zip(rows, means, strict=True) for v in found[r]),
        )

    def sigma(self) -> float:
        """Return the sd of one launch, from relaunches and the prior."""
        free = float(np.sum(self.count - 1))
        squares = NOISE_WEIGHT * NOISE_PRIOR**2 + self.squares
        return float(np.sqrt(squares / (NOISE_WEIGHT + free)))


def allot(log_weights: Array, draws: int) -> list[int]:
    """Return how many of `draws` samples each grid point gets, in proportion to its weight."""
    weights = np.exp(log_weights - log_weights.max())
    exact = weights / weights.sum() * draws
    parts = np.floor(exact).astype(int)
    rest = np.argsort(-(exact - parts), kind="stable")[: draws - parts.sum()]
    parts[rest] += 1
    return [int(p) for p in parts]
