"""What the trials so far make the model believe of every setting: joint samples of each target.

    histograms  --fit-->  acceptance weights  -->  accept length of each setting
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
from sweeper.sampler.histograms import counts_of
from sweeper.sampler.rows import Rows
from sweeper.sampler.table import Table
from sweeper.speculation import (
    MAX_POSITIONS,
    Array,
    Design,
    acceptance_design,
    fits,
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
#: Own deviation of a setting: in log step time at interaction scale 1, and in log length.
SETTING_SD, SETTING_LENGTH_SD = 0.006, 0.006
#: (width of a factor's effect on the logit of acceptance, prior weight): most likely it has none.
LOGIT_EFFECTS = ((0.003, 0.7), (0.03, 0.15), (0.15, 0.15))
#: Step of the logit by which the slope of the accept length is taken.
_SLOPE_STEP = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """Joint samples over all rows of the table.

    Attributes:
        logs: Log of each target, samples x rows, in the order of the targets.
        noise: Relative sd of one launch, a target.
        misfit: Root mean square of the standardised leave-one-out errors, at least 1, a target.
        seen: Number of measured rows, a target.
        log_lengths: Workload -> log of its accept length, samples x rows; 0 without speculation.
    """

    logs: tuple[Array, ...]
    noise: tuple[float, ...]
    misfit: tuple[float, ...]
    seen: tuple[int, ...]
    log_lengths: Mapping[str, Array]


class Model:
    """The fixed part: features of every row, made once."""

    def __init__(self, table: Table, targets: Sequence[Target]) -> None:
        self.table = table
        self.targets = tuple(targets)
        self._acceptance = functools.lru_cache(maxsize=4)(
            functools.partial(acceptance_design, table.shapes)
        )
        self._cells = functools.lru_cache(maxsize=4)(self._index)
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
        rows = [Rows.of(self.table, evidence, i) for i in range(len(self.targets))]
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
            log_lengths={w: found.samples for w, found in log_length.items()},
        )

    def _log_lengths(
        self, evidence: Sequence[Evidence], workload: str, rng: np.random.Generator
    ) -> "_Lengths":
        """Return samples of the log accept length of each row, and what was measured of it.

        By the model no factor besides the shape changes acceptance. By timing one still may
        (which kernel sums in which order decides near-ties), so a shift of the logit for each
        level, the same at all positions, is fitted with widths from a grid.
        """
        table, count = self.table, len(self.table.keys)
        if not table.speculates:
            return _Lengths(samples=np.zeros((DRAWS, count)), seen={})
        counts = counts_of(table, evidence, workload)
        design, index = self._acceptance(len(counts.kinds))
        arms = np.array(table.arm)
        spec = np.flatnonzero(arms >= 0)
        where, position, tried, accepted = counts.survival()
        cells = self._cells(len(counts.kinds))[
            arms[counts.row[where]], counts.kind[where], position
        ]
        inside = cells >= 0
        lost = tried[inside] - accepted[inside]
        won = accepted[inside] + 0.5
        values = np.log(won / (lost + 0.5))
        noise = 1 / won + 1 / (lost + 0.5) + 0.02**2
        factors, weight = self._length_factors
        rows = np.hstack([design.rows[cells[inside]], factors[counts.row[where][inside]]])
        mean = np.concatenate([design.mean, 0 * weight])
        sds = [np.concatenate([design.sd, width * weight]) for width, _ in LOGIT_EFFECTS]
        found = fits(rows, values, noise, mean, sds)
        likely = [f.evidence + np.log(p) for f, (_, p) in zip(found, LOGIT_EFFECTS, strict=True)]
        parts = allot(np.array(likely), DRAWS)
        drawn = np.concatenate(
            [
                f.draw(rng.standard_normal((part, len(mean))))
                for f, part in zip(found, parts, strict=True)
            ]
        )[rng.permutation(DRAWS)]
        features = len(design.mean)
        logits = drawn[:, :features] @ design.rows.T
        shares, depths = counts.shares(), [s.depth for s in table.shapes]

        def log_lengths(logits: Array) -> Array:
            return np.log(lengths(logits, index, depths, len(counts.kinds), shares))

        samples = np.zeros((DRAWS, count))
        samples[:, spec] = log_lengths(logits)[:, arms[spec]]
        if len(weight):
            middle = logits.mean(axis=0, keepdims=True)
            slope = log_lengths(middle + _SLOPE_STEP) - log_lengths(middle - _SLOPE_STEP)
            slopes = slope[0, arms[spec]] / (2 * _SLOPE_STEP)
            samples[:, spec] += (drawn[:, features:] @ factors[spec].T) * slopes
        seen = counts.lengths()
        own = SETTING_LENGTH_SD * _normals(rng, (DRAWS, count)) * (arms >= 0)
        for row, (value, variance) in seen.items():
            # The row's own deviation, given what was measured of it.
            share = SETTING_LENGTH_SD**2 / (SETTING_LENGTH_SD**2 + variance)
            own[:, row] = own[:, row] * np.sqrt(1 - share) + share * (value - samples[:, row])
        return _Lengths(samples=samples + own, seen=seen)

    @functools.cached_property
    def _length_factors(self) -> tuple[Array, Array]:
        """Features of a row's factors, and their widths relative to the widest."""
        design = self._steps(True)
        columns = design.scale == 1
        sd = design.sd[columns]
        return design.rows[:, columns], sd / sd.max(initial=1e-9)

    def _index(self, kinds: int) -> NDArray[np.int64]:
        """Return (shape, kind, position) -> row of the acceptance design; -1 for none."""
        _, index = self._acceptance(kinds)
        found = np.full((len(self.table.shapes), kinds, MAX_POSITIONS), -1, dtype=np.int64)
        found[index[:, 0], index[:, 1], index[:, 2]] = np.arange(len(index))
        return found

    def _target(
        self, target: Target, seen: "Rows", length: "_Lengths", rng: np.random.Generator
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
        found = []
        for own, group in _by_own_deviation():
            sds = [
                design.sd * np.array([1.0, main, inter])[design.scale] for main, inter, _ in group
            ]
            fitted = fits(rows, values - level, noise + own, design.mean, sds)
            found += [
                (f, own, np.log(prior) + f.evidence)
                for f, (*_, prior) in zip(fitted, group, strict=True)
            ]
        weights = np.array([weight for *_, weight in found])
        parts = allot(weights, DRAWS)
        samples = np.empty((DRAWS, len(self.table.keys)))
        start = 0
        for (fitted_one, own, _), part in zip(found, parts, strict=True):
            if not part:
                continue
            drawn = fitted_one.draw(rng.standard_normal((part, len(design.mean))))
            block = drawn @ design.rows.T
            deviation = np.sqrt(own) * _normals(rng, block.shape)
            kept = own / (own + noise)
            deviation[:, seen.row] = deviation[:, seen.row] * np.sqrt(1 - kept) + kept * (
                values - level - block[:, seen.row]
            )
            samples[start : start + part] = block + deviation + level
            start += part
        best, own, _ = found[int(np.argmax(weights))]
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


def _by_own_deviation() -> list[tuple[float, list[tuple[float, float, float]]]]:
    """Return the scales by the variance of a setting's own deviation that goes with them."""
    groups: dict[float, list[tuple[float, float, float]]] = {}
    for scale in SCALES:
        groups.setdefault((SETTING_SD * max(scale[1], 1.0)) ** 2, []).append(scale)
    return list(groups.items())


def _normals(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape, dtype=np.float32).astype(np.float64)


def allot(log_weights: Array, draws: int) -> list[int]:
    """Return how many of `draws` samples each grid point gets, in proportion to its weight."""
    weights = np.exp(log_weights - log_weights.max())
    exact = weights / weights.sum() * draws
    parts = np.floor(exact).astype(int)
    rest = np.argsort(-(exact - parts), kind="stable")[: draws - parts.sum()]
    parts[rest] += 1
    return [int(p) for p in parts]
