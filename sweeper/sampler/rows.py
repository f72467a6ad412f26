"""What was measured of one target, by setting, and the noise of a launch. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeper.sampler.evidence import Evidence
from sweeper.sampler.table import Table
from sweeper.speculation import Array

#: Prior of the noise of one launch (relative sd) and how many repeats it is worth.
NOISE_PRIOR, NOISE_WEIGHT = 0.010, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Mean log of one target over the launches of each measured row."""

    row: NDArray[np.int64]
    mean: Array
    count: Array
    squares: float

    @classmethod
    def of(cls, table: Table, evidence: Sequence[Evidence], target: int) -> "Rows":
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
