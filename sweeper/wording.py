"""How metrics, amounts and texts from outside are written for people; pure."""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import TypeVar

#: Units by the end of a metric's name; the first that fits counts.
_UNITS = (
    ("_tok_s_per_gpu", "tok/s per GPU"),
    ("_tok_s_per_user", "tok/s per user"),
    ("_tok_s", "tok/s"),
    ("_tok_s_low", "tok/s"),
    ("_tok_s_high", "tok/s"),
    ("_ms", "ms"),
    ("_s", "s"),
)
_SHORT = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end to end", "output": ""}
#: Joiners that emoji and several scripts need; other format characters are shown by number.
_JOINERS = "\u200c\u200d"
ELLIPSIS = "…"

_V = TypeVar("_V")


def unit(metric: str) -> str:
    """Return a metric's unit; empty for plain numbers."""
    return next((unit for end, unit in _UNITS if metric.endswith(end)), "")


def words(metric: str) -> str:
    """Return a metric's name without its unit, "TTFT p99"; empty where the unit says it all."""
    end = next((end for end, _ in _UNITS if metric.endswith(end)), "")
    found = (_SHORT.get(word, word) for word in metric.removesuffix(end).split("_"))
    return " ".join(word for word in found if word)


def title(metric: str, workload: str | None = None) -> str:
    """Return a heading with unit and workload, "TTFT p99, ms (busy)" or "tok/s (single)"."""
    parts = [part for part in (words(metric), unit(metric)) if part]
    return ", ".join(parts or [metric]) + (f" ({workload})" if workload else "")


def measure(metric: str) -> str:
    """Return what stands after a number of this metric, "tok/s" or "ms TTFT p99"."""
    return " ".join(part for part in (unit(metric), words(metric)) if part)


def amount(value: float, metric: str, workload: str | None = None) -> str:
    """Return a number with its unit, "94.4 tok/s (single)" or "412.0 ms TTFT p99"."""
    where = f" ({workload})" if workload else ""
    return f"{plain_number(value)} {measure(metric)}{where}"


def plain_number(value: float) -> str:
    """Return one decimal, or three where one would hide the number."""
    return f"{value:.1f}" if value == 0 or abs(value) >= 10 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Return seconds as people write them."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def visible(text: str) -> str:
    """Return `text` with line ends as spaces and invisible characters as <U+202E>.

    Right-to-left overrides could make a command read differently from what it does, escape
    sequences could rewrite a terminal, and lone surrogates cannot be written as UTF-8.
    """
    return "".join(_shown(c) for c in text)


def _shown(character: str) -> str:
    if character in "\n\r\t\u2028\u2029":
        return " "
    if character in _JOINERS or unicodedata.category(character) not in ("Cc", "Cf", "Cs"):
        return character
    return f"<U+{ord(character):04X}>"


def has_invisible(text: str) -> bool:
    """Tell whether `visible` would show a character by its number."""
    return any(len(_shown(c)) > 1 for c in text)


def shorten(text: str, limit: int) -> str:
    """Return `text` cut in the middle to `limit` characters; ends of paths tell the most."""
    if len(text) <= limit:
        return text
    head = (limit - 1) // 3
    return text[:head] + ELLIPSIS + text[len(text) - (limit - 1 - head) :]


def shared(points: Sequence[Mapping[str, _V]]) -> dict[str, _V]:
    """Return the values that all points have, so that they need saying only once.

    Empty for fewer than two points, and where nothing would be left to tell them apart.
    """
    if len(points) < 2:
        return {}
    first = points[0]
    found = {k: v for k, v in first.items() if all(k in p and p[k] == v for p in points)}
    return found if any(len(p) > len(found) for p in points) else {}
