"""Histograms of accepted tokens, summed over trials: what acceptance is learned from. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeper.sampler.evidence import Evidence
from sweeper.sampler.table import Table
from sweeper.speculation import MAX_POSITIONS, Array

#: A position that was tried less often tells nothing.
LEAST_TRIED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Summed histograms of one workload, one for each setting and prompt kind.

    Attributes:
        row: Row of the table, n.
        kind: Index into `kinds`, n.
        steps: Verify steps in which i draft tokens were accepted, n x i.
        tried: Most draft tokens that a step could accept, n.
        kinds: Prompt kinds; one without a name where some trial does not tell them apart.
    """

    row: NDArray[np.int64]
    kind: NDArray[np.int64]
    steps: Array
    tried: NDArray[np.int64]
    kinds: tuple[str, ...]

    def shares(self) -> Array:
        """Return each kind's share of the output tokens."""
        made = self.steps @ np.arange(1, self.steps.shape[1] + 1)
        tokens = np.bincount(self.kind, weights=made, minlength=len(self.kinds))
        total = tokens.sum()
        return np.asarray(tokens / total if total else 1.0 / len(self.kinds) + 0.0 * tokens)

    def survival(self) -> tuple[NDArray[np.int64], NDArray[np.int64], Array, Array]:
        """Return (index into `row`, position, times tried, times accepted), one a position."""
        reached = np.cumsum(self.steps[:, ::-1], axis=1)[:, ::-1]
        positions = min(max(self.steps.shape[1] - 1, 0), MAX_POSITIONS)
        tried, accepted = reached[:, :positions], reached[:, 1 : positions + 1]
        told = (tried >= LEAST_TRIED) & (np.arange(positions) < self.tried[:, None])
        where, position = np.nonzero(told)
        return where, position, tried[told], accepted[told]

    def lengths(self) -> dict[int, tuple[float, float]]:
        """Return row -> log of its measured accept length, and that log's variance."""
        rows, place = np.unique(self.row, return_inverse=True)
        made = np.arange(1, self.steps.shape[1] + 1)
        steps, first, second = (
            np.bincount(place, weights=self.steps @ made**power, minlength=len(rows))
            for power in (0, 1, 2)
        )
        found = {}
        for row, count, one, two in zip(
            rows.tolist(), steps.tolist(), first.tolist(), second.tolist(), strict=True
        ):
            if count > 0:
                mean = one / count
                variance = two / count - mean**2
                found[row] = (float(np.log(mean)), variance / count / mean**2)
        return found


def counts_of(table: Table, evidence: Sequence[Evidence], workload: str) -> Counts:
    """Return what was accepted in `workload`, over all trials of settings that speculate."""
    given = [
        (row, kind, histogram)
        for item in evidence
        if table.arm[row := table.row[item.key]] >= 0
        for kind, histogram in item.accepted.get(workload, {}).items()
    ]
    # Where one trial does not tell kinds apart, none can.
    blind = any(not kind for _, kind, _ in given)
    kinds = ("",) if blind or not given else tuple(sorted({kind for _, kind, _ in given}))
    index = {kind: 0 if blind else i for i, kind in enumerate(kinds)}
    width = max((len(histogram) for *_, histogram in given), default=1)
    steps = np.zeros((len(given), width))
    for i, (*_, histogram) in enumerate(given):
        steps[i, : len(histogram)] = histogram
    rows = np.array([row for row, *_ in given], dtype=np.int64)
    told = np.array([index.get(kind, 0) for _, kind, _ in given], dtype=np.int64)
    tried = np.array([len(histogram) - 1 for *_, histogram in given], dtype=np.int64)
    cells, place = np.unique(rows * len(kinds) + told, return_inverse=True)
    total = np.zeros((len(cells), width))
    np.add.at(total, place, steps)
    most = np.zeros(len(cells), dtype=np.int64)
    np.maximum.at(most, place, tried)
    return Counts(
        row=cells // len(kinds), kind=cells % len(kinds), steps=total, tried=most, kinds=kinds
    )
