"""Text from logs, models and users, made harmless for HTML and for Plotly's labels; pure.

Info records hold raw text. Escaping happens once, where text leaves for the page: `html_text` for
HTML, `label` for Plotly, which reads a few tags and entities in every label and hover.
"""

import html
from collections.abc import Sequence

from sweeper.wording import ELLIPSIS, plain_number, shorten, visible

#: A record's words in a figure's hover; longer ones are cut in the middle.
HOVER_LIMIT = 60
LABEL_LIMIT = 40


def html_text(text: str) -> str:
    """Return `text` for the inside of an element or a quoted attribute."""
    return html.escape(visible(text))


def label(text: str, limit: int = LABEL_LIMIT) -> str:
    """Return `text` for a tick, a legend or an annotation of Plotly."""
    return html.escape(shorten(visible(text), limit), quote=False)


def labels(texts: Sequence[str], limit: int = LABEL_LIMIT) -> list[str]:
    """Return a label for each text, unlike ones for unlike texts.

    Plotly takes categories of one name for one. Texts that are cut to the same label show the
    place where they part instead.
    """
    alike: dict[str, list[str]] = {}
    for text in dict.fromkeys(texts):
        alike.setdefault(label(text, limit), []).append(text)
    found: dict[str, str] = {}
    for short, group in sorted(alike.items(), key=lambda item: len(item[1])):
        if len(group) == 1:
            found[group[0]] = short
            continue
        whole = [visible(text) for text in group]
        ends = min(map(len, whole))
        part = next((i for i in range(ends) if len({w[i] for w in whole}) > 1), ends)
        begin = max(part - limit // 3, 0)
        for index, text in enumerate(group, start=1):
            tail = (ELLIPSIS if begin else "") + visible(text)[begin:]
            cut = tail if len(tail) <= limit else tail[: limit - 1] + ELLIPSIS
            name = html.escape(cut, quote=False)
            found[text] = f"{index}: {name}" if name in found.values() else name
    return [found[text] for text in texts]


def hover(*lines: str) -> str:
    """Return lines for a hover box of Plotly, each cut to a width that fits a phone."""
    return "<br>".join(label(line, HOVER_LIMIT) for line in lines if line)


def number(value: float | None, digits: int | None = None) -> str:
    """Return a number for people, as the terminal has it; "n/a" where there is none."""
    if value is None:
        return "n/a"
    if digits is None and abs(value) < 10:
        return plain_number(value)
    return f"{value:,.{1 if digits is None else digits}f}"


def percent(ratio: float | None) -> str:
    """Return a ratio as a signed difference from 1, "+4.4 %"."""
    return "n/a" if ratio is None else f"{(ratio - 1) * 100:+.1f} %"


def setting_lines(setting: str, width: int = 44) -> list[str]:
    """Return a setting broken into lines between its parameters, four lines at most."""
    lines: list[str] = []
    for word in setting.split(" "):
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines if len(lines) <= 4 else [*lines[:3], f"{lines[3]} {ELLIPSIS}"]


def legend(setting: str) -> str:
    """Return a setting for a legend, on several lines."""
    return "<br>".join(label(line, 44) for line in setting_lines(setting))
