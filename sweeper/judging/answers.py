"""Whether the answers of a launch can be trusted: broken text, and agreement of two launches."""

import zlib
from collections import Counter
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


def by_prompt(requests: Sequence[RequestTiming]) -> dict[tuple[str, str, int, int], RequestTiming]:
    """Return requests by workload, prompt, repeat and place among those of the same prompt.

    A pass of many streams sends a prompt several times, each behind a prefix of its own.
    """
    seen: Counter[tuple[str, str, int]] = Counter()
    found = {}
    for request in sorted(requests, key=lambda r: (r.repeat, r.sent_ns)):
        key = (request.workload, request.prompt_id, request.repeat)
        found[*key, seen[key]] = request
        seen[key] += 1
    return found


def answers_agree(a: Sequence[RequestTiming], b: Sequence[RequestTiming]) -> Agreement | None:
    """Compare the good answers of two launches, paired as `by_prompt` says; None of no pair.

    Only greedy answers to equal prompts can agree: salt both launches alike.
    """
    theirs = by_prompt(b)
    pairs = [
        (mine.prompt_id, mine.text, theirs[key].text)
        for key, mine in by_prompt(a).items()
        if key in theirs and mine.error is None and theirs[key].error is None
    ]
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
