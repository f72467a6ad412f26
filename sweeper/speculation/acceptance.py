"""Acceptance: the chance that a draft position is accepted, and the accept length it makes."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sweeper.speculation.regression import Array, Columns, Design
from sweeper.speculation.shape import Shape

#: Positions beyond this one are as the last.
MAX_POSITIONS = 8


def acceptance_design(
    shapes: Sequence[Shape], kinds: int, *, shape_sd: float = 0.04, tree_sd: float = 0.10
) -> tuple[Design, NDArray[np.int64]]:
    """Return features of each (shape, prompt kind, position), and which of them each row is.

    Args:
        shapes: Shapes, each once.
        kinds: Number of prompt kinds, at least 1.
        shape_sd: Prior sd of a chain's own deviation, in logits.
        tree_sd: The same of a tree.

    Returns:
        The design, and rows of (shape index, kind index, position from 0).
    """
    cells = [
        (a, c, j)
        for a, shape in enumerate(shapes)
        for c in range(kinds)
        for j in range(min(shape.depth, MAX_POSITIONS))
    ]
    index = np.array(cells, dtype=np.int64).reshape(-1, 3)
    arm, kind, position = index[:, 0], index[:, 1], index[:, 2].astype(float)
    tree = np.array([s.is_tree for s in shapes], dtype=float)[arm]
    width = np.array([s.log_width for s in shapes])[arm]
    rank = np.array([np.log2(s.topk) for s in shapes])[arm]
    steps = np.array([s.steps for s in shapes], dtype=float)[arm]
    drafts = sorted({s.draft for s in shapes})
    own_draft = np.array([drafts.index(s.draft) for s in shapes], dtype=np.int64)[arm]
    found = Columns()
    found.add("first", np.ones(len(index)), 0.5, 0.6)
    found.add("position", position, -0.2, 0.15)
    for j in range(1, MAX_POSITIONS):
        found.add(f"position>={j}", position >= j, 0.0, 0.25 / j)
    for d, draft in enumerate(drafts):
        mine = (own_draft == d).astype(float)
        if len(drafts) > 1:
            found.add(draft, mine, 0.0, 0.5)
            found.add(f"{draft} position", mine * position, 0.0, 0.08)
            for j in range(1, 4):
                found.add(f"{draft} position>={j}", mine * (position >= j), 0.0, 0.1 / j)
        if kinds > 1:
            for c in range(kinds):
                found.add(f"{draft} kind {c}", mine * (kind == c), 0.0, 0.12)
    if kinds > 1:
        for c in range(kinds):
            found.add(f"kind {c}", kind == c, 0.0, 0.3)
    # A tree's position is accepted if any of its guesses is right: more guesses, later ranks.
    found.add("tree", tree, 0.0, 0.2)
    found.add("tree width", tree * width, 0.10, 0.12)
    found.add("tree used width", tree * np.minimum(width, rank), 0.25, 0.15)
    found.add("tree width squared", tree * width**2, -0.02, 0.04)
    found.add("tree position", tree * position, -0.10, 0.12)
    found.add("tree width position", tree * width * position, 0.02, 0.05)
    found.add("tree steps", tree * (steps - 3), 0.0, 0.05)
    found.add("tree rank", tree * rank, 0.05, 0.10)
    found.add("tree rank position", tree * rank * position, -0.02, 0.05)
    forms = [(s.steps, s.topk, s.draft_tokens) for s in shapes]
    for form in sorted(set(forms)):
        same = np.array([f == form for f in forms])[arm]
        found.add(f"shape {form}", same, 0.0, tree_sd if form[1] > 1 else shape_sd)
    return found.design(), index


def lengths(
    logits: Array, index: NDArray[np.int64], depths: Sequence[int], kinds: int, shares: Array
) -> Array:
    """Return accept lengths, samples x shapes: 1 + sum of products of chances, over the kinds.

    The tokens of a workload are spread over kinds by `shares`, its steps are tokens / length, so
    the workload's length is the harmonic mean over kinds.

    Args:
        logits: Samples x rows of `acceptance_design`.
        index: What the rows are, from `acceptance_design`.
        depths: Depth of each shape. Positions beyond MAX_POSITIONS have the last one's chance.
        kinds: Number of prompt kinds.
        shares: Share of each kind in the output tokens, summing to 1.
    """
    arms = len(depths)
    chance = 1.0 / (1.0 + np.exp(-logits))
    place = index[:, 0] * kinds + index[:, 1]
    by_kind = np.ones((len(logits), arms * kinds))
    product = np.ones((len(logits), arms * kinds))
    for position in range(int(index[:, 2].max(initial=-1)) + 1):
        # Each shape that has this position has all before it.
        cells = np.flatnonzero(index[:, 2] == position)
        reached = product[:, place[cells]] * chance[:, cells]
        product[:, place[cells]] = reached
        by_kind[:, place[cells]] += reached
    last = np.flatnonzero(index[:, 2] == MAX_POSITIONS - 1)
    beyond = np.asarray(depths, dtype=np.int64)[index[last, 0]] - MAX_POSITIONS
    for further in range(int(beyond.max(initial=0))):
        cells = last[beyond > further]
        product[:, place[cells]] *= chance[:, cells]
        by_kind[:, place[cells]] += product[:, place[cells]]
    lengths_by_kind = by_kind.reshape(len(logits), arms, kinds)
    return np.asarray(1.0 / (shares / lengths_by_kind).sum(axis=2))
