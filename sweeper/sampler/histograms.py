"""Histograms of accepted tokens, summed over trials: what acceptance is learned from. Pure."""

from collections.abc import Iterator, Sequence

import numpy as np

from sweeper.sampler.evidence import Evidence, add_up
from sweeper.sampler.table import Table
from sweeper.speculation import MAX_POSITIONS, Array

#: (index of the shape, prompt kind) -> summed histogram.
Totals = dict[tuple[int, str], tuple[float, ...]]


def histograms(table: Table, evidence: Sequence[Evidence], workload: str) -> Totals:
    """Return (shape, prompt kind) -> summed histogram."""
    found: dict[tuple[int, str], list[tuple[float, ...]]] = {}
    given = [(table.arm[table.row[e.key]], e.accepted.get(workload, {})) for e in evidence]
    # Where one trial does not tell kinds apart, none can.
    blind = any("" in kinds for _, kinds in given)
    for arm, kinds in given:
        for kind, histogram in kinds.items():
            if arm >= 0:
                found.setdefault((arm, "" if blind else kind), []).append(histogram)
    return {key: add_up(rows) for key, rows in found.items()}


def survival(histogram: Sequence[float]) -> Iterator[tuple[int, float, float]]:
    """Yield (position, steps in which it was tried, steps in which it was accepted)."""
    at_risk = sum(histogram)
    for j in range(min(len(histogram) - 1, MAX_POSITIONS)):
        accepted = max(at_risk - histogram[j], 0.0)
        if at_risk < 3:
            return
        yield j, at_risk, accepted
        at_risk = accepted


def shares(totals: Totals, kinds: Sequence[str]) -> Array:
    """Return each kind's share of the output tokens."""
    tokens = np.zeros(len(kinds))
    for (_, kind), histogram in totals.items():
        tokens[kinds.index(kind)] += sum((i + 1) * count for i, count in enumerate(histogram))
    total = tokens.sum()
    return tokens / total if total else np.full(len(kinds), 1 / len(kinds))


def seen_lengths(
    table: Table, evidence: Sequence[Evidence], workload: str
) -> dict[int, tuple[float, float]]:
    """Return row -> log of its measured accept length, and that log's variance."""
    rows: dict[int, list[tuple[float, ...]]] = {}
    for item in evidence:
        for histogram in item.accepted.get(workload, {}).values():
            rows.setdefault(table.row[item.key], []).append(histogram)
    found = {}
    for row, histograms in rows.items():
        counts = np.array(add_up(histograms))
        made = np.arange(1, len(counts) + 1)
        steps = counts.sum()
        if steps > 0:
            mean = float(counts @ made / steps)
            variance = float(counts @ made**2 / steps) - mean**2
            found[row] = (float(np.log(mean)), variance / steps / mean**2)
    return found
