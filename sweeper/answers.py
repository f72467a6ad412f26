"""Whether the answers of a launch can be trusted: broken text, and agreement of two launches."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeper.records import RequestTiming


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far two launches gave the same answers to the same prompts.

    Attributes:
        pairs: Answers compared.
        equal_share: Share of pairs that are equal to the last character.
        common_share: Mean share of an answer before its first difference.
        first_difference: Prompt id and character index of the earliest difference; None if none.
    """

    pairs: int
    equal_share: float
    common_share: float
    first_difference: tuple[str, int] | None


def degenerate(text: str) -> str | None:
    """Return why an answer looks broken, or None.

    Broken are: no text; mostly replacement characters; a run that repeats with one period (up to
    200 characters) for at least four periods and half of the text; more than 12-fold compression
    by zlib (plain prose reaches 3, tables and code 6). Short texts are only tested for the first
    two. With `ignore_eos` a sound model may loop after its own end, so compare with the baseline.
    """
    if not text.strip():
        return "the answer is empty"
    if text.count("\ufffd") > len(text) / 4:
        return "the answer is mostly undecodable bytes"
    if len(text) < 200:
        return None
    points = np.frombuffer(text.encode("utf-32-le", "replace"), dtype=np.uint32)
    for period in range(1, min(200, len(points) // 4) + 1):
        run = _longest_run(points[period:] == points[:-period]) + period
        if run >= max(4 * period, len(points) / 2):
            unit = text[-period:] if period <= 40 else text[-40:]
            return f"{run} of {len(points)} characters repeat with period {period}: {unit!r}"
    raw = text.encode("utf-8", "replace")
    ratio = len(raw) / len(zlib.compress(raw, 6))
    return f"the answer compresses {ratio:.0f}-fold" if ratio > 12 else None


def answers_agree(a: Sequence[RequestTiming], b: Sequence[RequestTiming]) -> Agreement | None:
    """Compare the good answers of two launches, paired by prompt and repeat; None of no pair.

    Only greedy answers to equal prompts can agree: salt both launches alike.
    """
    theirs = {(r.prompt_id, r.repeat): r.text for r in b if r.error is None}
    keyed = {(r.prompt_id, r.repeat): r.text for r in a if r.error is None}
    pairs = [(key[0], text, theirs[key]) for key, text in keyed.items() if key in theirs]
    if not pairs:
        return None
    differences = [(_first_difference(x, y), prompt) for prompt, x, y in pairs if x != y]
    common = [
        1.0 if x == y else _first_difference(x, y) / max(len(x), len(y)) for _, x, y in pairs
    ]
    first = min(differences, default=None)
    return Agreement(
        pairs=len(pairs),
        equal_share=1 - len(differences) / len(pairs),
        common_share=sum(common) / len(common),
        first_difference=None if first is None else (first[1], first[0]),
    )


def _longest_run(flags: NDArray[np.bool_]) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.view(np.int8), [0]))))
    return int((edges[1::2] - edges[::2]).max()) if len(edges) else 0


def _first_difference(x: str, y: str) -> int:
    for index, (a, b) in enumerate(zip(x, y, strict=False)):
        if a != b:
            return index
    return min(len(x), len(y))
