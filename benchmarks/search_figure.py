"""The comparison of samplers as a picture: share of sweeps that have hit, by launch. Plain SVG."""

from collections.abc import Sequence
from html import escape

from benchmarks.search_report import Run

#: Colours that people with any colour vision tell apart (Okabe and Ito, 2008).
COLOURS = {
    "auto": "#d55e00",
    "tpe": "#0072b2",
    "gp": "#009e73",
    "nsga2": "#cc79a7",
    "random": "#999999",
    "exhaustive": "#555555",
}
COLUMNS = 4
WIDTH, HEIGHT = 210, 140
LEFT, TOP, GAP = 46, 56, 34


def figure(runs: Sequence[Run], launches: int) -> str:
    """Return an SVG with one panel a landscape and one line a sampler."""
    names = list(dict.fromkeys(r.landscape for r in runs))
    arms = [arm for arm in COLOURS if any(r.sampler == arm for r in runs)]
    rows = -(-len(names) // COLUMNS)
    width = LEFT + COLUMNS * (WIDTH + GAP)
    height = TOP + rows * (HEIGHT + GAP + 22) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(
            LEFT,
            18,
            "Share of sweeps that have launched a setting within 1 % of the best, by launch",
        ),
    ]
    for i, arm in enumerate(arms):
        x = LEFT + i * 110
        parts.append(
            f'<path d="M{x} 32h22" stroke="{COLOURS[arm]}" stroke-width="2.5" fill="none"/>'
        )
        parts.append(_text(x + 27, 36, arm))
    for i, name in enumerate(names):
        x = LEFT + i % COLUMNS * (WIDTH + GAP)
        y = TOP + i // COLUMNS * (HEIGHT + GAP + 22) + 14
        parts += _axes(x, y, name, launches, first=i % COLUMNS == 0)
        for arm in reversed(arms):
            these = [r for r in runs if r.landscape == name and r.sampler == arm]
            if these:
                parts.append(_line(these, x, y, launches, COLOURS[arm]))
    return "\n".join([*parts, "</svg>\n"])


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def _axes(x: int, y: int, name: str, launches: int, *, first: bool) -> list[str]:
    parts = [_text(x, y - 5, name)]
    for share in (0, 0.5, 1):
        at = y + HEIGHT * (1 - share)
        parts.append(f'<path d="M{x} {at:g}h{WIDTH}" stroke="#dddddd" fill="none"/>')
        if first:
            parts.append(_text(x - 5, at + 4, f"{100 * share:.0f} %", "end"))
    for launch in range(0, launches + 1, 10):
        at = x + WIDTH * launch / launches
        parts.append(_text(at, y + HEIGHT + 14, f"{launch}", "middle"))
    return parts


def _line(runs: Sequence[Run], x: int, y: int, launches: int, colour: str) -> str:
    path = [f"M{x} {y + HEIGHT}"]
    for launch in range(1, launches + 1):
        share = sum(r.hit is not None and r.hit <= launch for r in runs) / len(runs)
        path.append(f"H{x + WIDTH * launch / launches:.1f}V{y + HEIGHT * (1 - share):.1f}")
    return f'<path d="{"".join(path)}" stroke="{colour}" stroke-width="2" fill="none"/>'
