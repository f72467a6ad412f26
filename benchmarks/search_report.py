"""The comparison of samplers as lines of text."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

REGRET_AT = (5, 10, 20, 40)
HEADINGS = (
    "landscape",
    "sampler",
    "launches to 1 %, quartiles",
    "GPU-h at 600 s / 60 s starts",
    "median regret % at 5 / 10 / 20 / 40",
    "final within 1 / 2 %",
    "found in all",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One sweep.

    Attributes:
        landscape: Its name.
        sampler: Its name.
        seed: Its seed.
        hit: Launch, from 1, at which a setting within 1 % of the best was first launched.
        hours: Start seconds -> GPU-hours until then.
        regret: At 5, 10, 20 and 40 launches: how far the best launched setting is from the best.
        final: How far the setting is that is chosen after the finalists were launched again.
        stop: Launch at which the sampler said that it may stop, and how far the best launched
            setting was then.
        ask_s: Longest ask.
        repeats: Settings launched twice.
    """

    landscape: str
    sampler: str
    seed: int
    hit: int | None
    hours: dict[int, float]
    regret: tuple[float, ...]
    final: float
    stop: tuple[int, float] | None
    ask_s: float
    repeats: int


def _quartiles(values: Sequence[float], launches: int) -> str:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], method="nearest")
    return "/".join(f"{v:.0f}" if v <= launches else f">{launches}" for v in (low, middle, high))


def table(runs: Sequence[Run], launches: int) -> list[str]:
    """Return the comparison as lines of a Markdown table."""
    lines = [
        f"| {' | '.join(HEADINGS)} |",
        "|---" * len(HEADINGS) + "|",
    ]
    for name in dict.fromkeys(r.landscape for r in runs):
        for sampler in dict.fromkeys(r.sampler for r in runs):
            these = [r for r in runs if r.landscape == name and r.sampler == sampler]
            if not these:
                continue
            hits = _quartiles([r.hit or launches + 1 for r in these], launches)
            hours = " / ".join(
                f"{statistics.median(r.hours[s] for r in these):.0f}" for s in (600, 60)
            )
            regret = " / ".join(
                f"{100 * statistics.median(r.regret[i] for r in these):.1f}"
                for i in range(len(REGRET_AT))
            )
            final = " / ".join(
                f"{100 * statistics.mean(r.final <= limit for r in these):.0f}"
                for limit in (0.01, 0.02)
            )
            found = f"{100 * statistics.mean(r.hit is not None for r in these):.0f} %"
            cells = (name, sampler, hits, hours, regret, final, found)
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def ratios(runs: Sequence[Run], launches: int) -> list[str]:
    """Return how many times the launches of auto the others need, and how its stops were."""
    lines = []
    mean = {
        sampler: statistics.geometric_mean(
            r.hit or launches + 1 for r in runs if r.sampler == sampler
        )
        for sampler in dict.fromkeys(r.sampler for r in runs)
    }
    for sampler, value in mean.items():
        ratio = f", {value / mean['auto']:.1f} times auto" if "auto" in mean else ""
        lines.append(
            f"{sampler}: {value:.1f} launches (geometric mean, misses as {launches + 1}){ratio}"
        )
    stops = [r.stop for r in runs if r.stop]
    own = [r for r in runs if r.sampler == "auto"]
    if own:
        right = sum(regret <= 0.01 for _, regret in stops)
        lines.append(
            f"auto said stop in {len(stops)} of {len(own)} sweeps"
            + (
                f", at launch {statistics.median(n for n, _ in stops):.0f} (median), rightly in "
                f"{right} ({100 * right / len(stops):.0f} %)"
                if stops
                else ""
            )
        )
    lines.append(
        f"longest ask {1000 * max(r.ask_s for r in runs):.0f} ms; "
        f"settings launched twice: {sum(r.repeats for r in runs)}"
    )
    return lines
