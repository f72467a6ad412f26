"""The comparison of samplers as lines of text."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

REGRET_AT = (5, 10, 20, 40)
#: Landscapes that break no assumption of the search's model.
REALISTIC = ("kimi-k2.5-first", "kimi-k2.5-later", "drawn")
HEADINGS = (
    "landscape",
    "sampler",
    "launches to 1 %, quartiles",
    "GPU-h at 600 s / 60 s starts",
    "median regret % at 5 / 10 / 20 / 40",
    "final within 1 / 2 %",
    "found",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One sweep.

    Attributes:
        landscape: Its name.
        sampler: Its name.
        seed: Its seed.
        hit: Launch, from 1, at which a setting within 1 % of the best was first launched.
        hours: GPU-hours until then, at 600 s and at 60 s a start.
        ran: Launches of the sweep; beyond the table's only to look for a first hit.
        regret: At 5, 10, 20 and 40 launches: how far the best launched setting is from the best.
        final: How far the winner is from the best, after the confirmations of a sweep.
        stop: Launch at which the sampler said that it may stop, and how far the best launched
            setting was then.
        ask_s: CPU seconds of an ask: mean and longest.
        repeats: Settings launched twice.
    """

    landscape: str
    sampler: str
    seed: int
    hit: int | None
    hours: tuple[float, ...]
    ran: int
    regret: tuple[float, ...]
    final: float
    stop: tuple[int, float] | None
    ask_s: tuple[float, float]
    repeats: int

    @property
    def cost(self) -> int:
        """Launches to the hit; one more than there were if it did not come."""
        return self.hit or self.ran + 1


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
            hits = _quartiles([r.cost for r in these], max(launches, min(r.ran for r in these)))
            hours = " / ".join(
                f"{statistics.median(r.hours[i] for r in these):.0f}" for i in range(2)
            )
            regret = " / ".join(
                f"{100 * statistics.median(r.regret[i] for r in these):.1f}"
                for i in range(len(REGRET_AT))
            )
            final = " / ".join(
                f"{100 * statistics.mean(r.final <= limit for r in these):.0f}"
                for limit in (0.01, 0.02)
            )
            found = f"{100 * _share(r.cost <= launches for r in these):.0f} %"
            cells = (name, sampler, hits, hours, regret, final, found)
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def _share(these: Iterable[bool]) -> float:
    return statistics.mean(map(float, these))


def ratios(runs: Sequence[Run], launches: int) -> list[str]:
    """Return what the comparison comes to, a line each."""
    lines = []
    arms = list(dict.fromkeys(r.sampler for r in runs))
    mean = {
        arm: statistics.geometric_mean(r.cost for r in runs if r.sampler == arm) for arm in arms
    }
    for arm, value in mean.items():
        # Paired: a sampler with fewer seeds is compared over those.
        pairs = _pairs(runs, arm)
        ratio = statistics.geometric_mean(other / own for own, other in pairs) if pairs else None
        missed = sum(r.hit is None for r in runs if r.sampler == arm)
        lines.append(
            f"{arm}: {value:.1f} launches (geometric mean; {missed} sweeps without a hit count "
            f"as one launch more than they had)"
            + (f", {ratio:.1f} times auto" if ratio and arm != "auto" else "")
        )
    own = [r for r in runs if r.sampler == "auto"]
    for name, chosen in (
        ("realistic", [r for r in own if r.landscape in REALISTIC]),
        ("model-breaking", [r for r in own if r.landscape not in REALISTIC]),
    ):
        if chosen:
            lines.append(f"auto, {name} landscapes: {_summary(chosen, launches)}")
    for arm in arms:
        asks = [r.ask_s for r in runs if r.sampler == arm]
        lines.append(
            f"{arm}: an ask takes {1000 * statistics.median(a for a, _ in asks):.0f} ms of CPU "
            f"time (median of the sweeps' means), {1000 * max(a for _, a in asks):.0f} ms at most"
        )
    lines.append(f"settings launched twice: {sum(r.repeats for r in runs)}")
    return lines


def _pairs(runs: Sequence[Run], arm: str) -> list[tuple[int, int]]:
    """Return launches of auto and of another sampler on the same landscape and seed."""
    own = {(r.landscape, r.seed): r for r in runs if r.sampler == "auto"}
    return [
        (own[r.landscape, r.seed].cost, r.cost)
        for r in runs
        if r.sampler == arm and (r.landscape, r.seed) in own
    ]


def _summary(runs: Sequence[Run], launches: int) -> str:
    stops = [r.stop for r in runs if r.stop]
    words = (
        f"median {statistics.median(r.cost for r in runs):g} launches, found in "
        f"{100 * _share(r.cost <= launches for r in runs):.0f} %, final within 1 % in "
        f"{100 * _share(r.final <= 0.01 for r in runs):.0f} % and within 2 % in "
        f"{100 * _share(r.final <= 0.02 for r in runs):.0f} %; said stop in {len(stops)} of "
        f"{len(runs)} sweeps"
    )
    if not stops:
        return words
    right = sum(regret <= 0.01 for _, regret in stops)
    return words + (
        f", at launch {statistics.median(n for n, _ in stops):g} (median), rightly in {right} "
        f"({100 * right / len(stops):.0f} %)"
    )
