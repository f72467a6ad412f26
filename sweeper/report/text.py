"""Text from logs, models and users, made harmless for HTML and for Plotly's labels; pure.

Info records hold raw text. Escaping happens once, where text leaves for the page: `html_text` for
HTML, `label` for Plotly, which reads a few tags and entities in every label and hover.
"""

import html

from sweeper.wording import ELLIPSIS, shorten, visible

#: A record's words in a figure's hover; longer ones are cut in the middle.
HOVER_LIMIT = 60
LABEL_LIMIT = 40


def html_text(text: str) -> str:
    """Return `text` for the inside of an element or a quoted attribute."""
    return html.escape(visible(text))


def label(text: str, limit: int = LABEL_LIMIT) -> str:
    """Return `text` for a tick, a legend or an annotation of Plotly."""
    return html.escape(shorten(visible(text), limit), quote=False)


def hover(*lines: str) -> str:
    """Return lines for a hover box of Plotly, each cut to a width that fits a phone."""
    return "<br>".join(label(line, HOVER_LIMIT) for line in lines if line)


def number(value: float | None, digits: int = 1) -> str:
    """Return a number for people; "n/a" where there is none."""
    return "n/a" if value is None else f"{value:,.{digits}f}"


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
