"""The start: a few launches that differ in shape and in all factors at once. Pure.

Changing several things at once teaches as much of each as changing them one by one, because the
model is additive; and it takes fewer launches.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from sweeper.sampler.acquire import Mask
from sweeper.sampler.table import Table
from sweeper.speculation import Setting, Shape

#: Launches of the start where nothing speculates.
START_LAUNCHES = 3


def first_launch(table: Table, launched: Collection[str], allowed: Mask) -> int | None:
    """Return the row of the next launch of the start, or None once it is over.

    Shapes: a long chain (its positions tell all shorter ones), a tree and a short chain, as far
    as the plan has them and none like it was launched. Each takes the levels seen least.

    Args:
        table: The settings.
        launched: Launch keys that are finished or in flight.
        allowed: Whether a row of the plan may be launched.
    """
    rows = sorted(table.row[key] for key in launched if key in table.row)
    tried = [table.settings[r] for r in rows if r < table.plan_rows]
    shapes = [s.shape for s in tried if s.shape]
    role = None
    if table.speculates:
        roles = [r for r in _roles(table.shapes) if not any(r.fits(s) for s in shapes)]
        if not roles:
            return None
        role = roles[0]
    elif len(tried) >= START_LAUNCHES:
        return None
    candidates = [
        r
        for r in np.flatnonzero(allowed).tolist()
        if (role is None or role.fits(table.settings[r].shape))
        and not _graphs_off(table, table.settings[r])
    ]
    if not candidates:
        return None
    seen = [table.settings[r] for r in rows]
    return min(
        candidates,
        key=lambda r: (_familiar(table.settings[r], seen) + _far(role, table.settings[r]), r),
    )


def _familiar(setting: Setting, seen: Sequence[Setting]) -> float:
    levels = sum(
        other.levels[f] == level for other in seen for f, level in enumerate(setting.levels)
    )
    mine = setting.shape
    drafts = sum(o.shape.draft == mine.draft for o in seen if o.shape) if mine else 0
    return float(levels + drafts)


def _graphs_off(table: Table, setting: Setting) -> bool:
    return any(
        f.graphs_off is not None and f.graphs_off == level
        for f, level in zip(table.factors, setting.levels, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Role:
    """A kind of shape that the start wants to see once: a chain or a tree, near some numbers."""

    tree: bool
    low: int
    high: int
    wish: tuple[int, int, int]

    def fits(self, shape: Shape | None) -> bool:
        return (
            shape is not None
            and shape.is_tree == self.tree
            and self.low <= shape.steps <= self.high
        )


def _far(role: _Role | None, setting: Setting) -> float:
    if role is None or setting.shape is None:
        return 0.0
    steps, topk, tokens = role.wish
    away = float(abs(setting.shape.steps - steps))
    away += abs(math.log2(setting.shape.topk / topk))
    away += abs(math.log2(setting.shape.draft_tokens / tokens))
    # Far more than levels weigh: the shape is what the role is about.
    return 100.0 * away


def _roles(shapes: Sequence[Shape]) -> list[_Role]:
    """Return the shapes to start with, as far as there are such."""
    chains = sorted({s.steps for s in shapes if not s.is_tree})
    trees = sorted({s.steps for s in shapes if s.is_tree})
    roles = []
    if chains:
        middle = chains[len(chains) // 2]
        longest, shortest = chains[-1], chains[min(1, len(chains) - 1)]
        roles.append(_Role(tree=False, low=middle, high=longest, wish=(longest, 1, longest + 1)))
        if shortest < middle:
            wish = (shortest, 1, shortest + 1)
            roles.append(_Role(tree=False, low=chains[0], high=shortest, wish=wish))
    if trees:
        steps = min(trees, key=lambda s: abs(s - 3))
        roles.insert(1, _Role(tree=True, low=trees[0], high=trees[-1], wish=(steps, 4, 8)))
    return roles
