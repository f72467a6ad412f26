"""Step time: features of the log of a positive number that settings differ in, with priors."""

from collections.abc import Sequence

import numpy as np

from sweeper.speculation.regression import Array, Columns, Design
from sweeper.speculation.shape import Factor, Setting

#: Above these numbers own effects of shapes, and pairs of levels, are left to the noise.
MAX_SHAPES = 200
MAX_PAIRS = 150

_OneHot = list[tuple[str, Array, float]]


def step_design(
    settings: Sequence[Setting],
    factors: Sequence[Factor],
    *,
    physical: bool,
    factor_sd: float = 0.06,
) -> Design:
    """Return features of the log step time, or of any other positive number, of each setting.

    Args:
        settings: The settings.
        factors: What `Setting.levels` index.
        physical: Whether the number is a step time, for which magnitudes are known.
        factor_sd: Prior sd of a level's effect, before scaling.
    """
    shapes = [s.shape for s in settings]
    spec = np.array([s is not None for s in shapes], dtype=float)
    steps = np.array([s.steps if s else 0 for s in shapes], dtype=float)
    tokens = np.array([s.draft_tokens if s else 1 for s in shapes], dtype=float)
    tree = np.array([bool(s and s.is_tree) for s in shapes], dtype=float)
    rank = np.array([np.log2(s.topk) if s else 0.0 for s in shapes])
    wide = np.log2(tokens)
    drafts = sorted({s.draft for s in shapes if s})
    own = np.array([drafts.index(s.draft) if s else -1 for s in shapes])
    found = Columns()
    found.add("level", np.ones(len(settings)), 0.0, 2.0)
    known = 1.0 if physical else 0.0
    wider = 1.0 if physical else 2.0
    found.add("speculation", spec, 0.35 * known, 0.25 * wider)
    found.add("steps", steps, 0.10 * known, 0.06 * wider)
    found.add("log2 draft tokens", wide, 0.06 * known, 0.05 * wider)
    found.add("draft tokens", (tokens - 1) / 64, 0.2 * known, 0.25 * wider)
    found.add("tree", tree, 0.02 * known, 0.05 * wider)
    found.add("tree rank", rank, 0.0, 0.02 * wider)
    for value in sorted(set(steps))[2:]:
        found.add(f"steps>={value:g}", steps >= value, 0.0, 0.02, 2)
    for value in sorted(set(tokens))[2:]:
        found.add(f"draft tokens>={value:g}", tokens >= value, 0.0, 0.03, 2)
    found.add("steps x log2 draft tokens", spec * (steps - 3) * (wide - 2), 0.0, 0.01, 2)
    if len(drafts) > 1:
        for d, draft in enumerate(drafts):
            found.add(draft, own == d, 0.0, 0.04)
            found.add(f"{draft} steps", (own == d) * (steps - 2), 0.0, 0.015, 2)
    onehot = _factors(found, settings, factors, physical=physical, sd=factor_sd)
    for name, column, weight in onehot:
        found.add(f"{name} x speculation", column * spec, 0.0, 0.03 * weight, 2)
        found.add(f"{name} x steps", column * spec * (steps - 2), 0.0, 0.012 * weight, 2)
        found.add(f"{name} x tokens", column * spec * (wide - 2), 0.0, 0.012 * weight, 2)
    _pairs(found, onehot)
    forms = [(s.steps, s.topk, s.draft_tokens) if s else (0, 0, 0) for s in shapes]
    distinct = sorted({form for form in forms if form[0]})
    if len(distinct) <= MAX_SHAPES:
        for form in distinct:
            same = np.array([f == form for f in forms])
            found.add(f"shape {form}", same, 0.0, 0.012, 2)
    return found.design()


def _factors(
    found: Columns,
    settings: Sequence[Setting],
    factors: Sequence[Factor],
    *,
    physical: bool,
    sd: float,
) -> _OneHot:
    """Add main effects; return (name, column, weight of its interactions) of each level."""
    onehot: _OneHot = []
    for f, factor in enumerate(factors):
        level = np.array([s.levels[f] for s in settings])
        count = len(factor.levels)
        numbers = count - factor.unset
        for v in range(count):
            name, column = f"{factor.name}={factor.labels[v]}", (level == v).astype(float)
            if v == factor.graphs_off and physical:
                # Without graphs the host launches each kernel: 1.3 to 2 times as long.
                found.add(name, column, 0.45, 0.25)
                onehot.append((name, column, 2.0))
                continue
            if factor.numeric and numbers > 2 and v < numbers:
                # A walk over the levels: neighbours are alike.
                up = (level >= v) & (level < numbers)
                found.add(f"{name} up", up, 0.0, sd / np.sqrt(numbers - 1), 1)
            else:
                found.add(name, column, 0.0, sd, 1)
            onehot.append((name, column, 1.0))
    return onehot


def _pairs(found: Columns, onehot: _OneHot) -> None:
    pairs = [
        (a, b)
        for i, a in enumerate(onehot)
        for b in onehot[i + 1 :]
        if a[0].split("=")[0] != b[0].split("=")[0]
    ]
    if len(pairs) <= MAX_PAIRS:
        for (name, column, weight), (other, column2, weight2) in pairs:
            product = column * column2
            found.add(f"{name} x {other}", product, 0.0, 0.02 * max(weight, weight2), 2)
