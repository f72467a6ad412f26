"""One HTML page from runs: it loads nothing from a network and runs only its own scripts.

The page's Content-Security-Policy names the hash of each script, so that nothing else runs even
if a text were to slip through escaping. Figures lie in the page as JSON, which is never run.
"""

import base64
import functools
import hashlib
import html
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from plotly.offline import get_plotlyjs

from sweeper import __version__
from sweeper.report import tables
from sweeper.report.draw_effects import draw_compare
from sweeper.report.progress import baseline_band, reference
from sweeper.report.provenance import CompareInfo, compare_info
from sweeper.report.run import Run
from sweeper.report.sections import Chart, Section, sections
from sweeper.report.text import html_text, number, percent
from sweeper.report.theme import DARK, LIGHT, TITLE
from sweeper.wording import has_invisible, measure

PLOTLY_FILE = "plotly.min.js"


def render(runs: Sequence[Run], *, plotly: str = "inline") -> str:
    """Return the page of one run, or of several side by side.

    Args:
        runs: At least one; with several, each is compared with the first.
        plotly: "inline" puts Plotly into the page; "directory" refers to `PLOTLY_FILE` beside it.
    """
    script = _asset("page.js")
    if plotly == "inline":
        library = get_plotlyjs()
        load = f"<script>{library}</script>"
        allowed = f"{_hash(library)} {_hash(script)}"
    else:
        load = f'<script src="{PLOTLY_FILE}"></script>'
        # 'self' does not cover a page opened from a disk.
        allowed = f"'self' file: {_hash(script)}"
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    title = " and ".join(html_text(run.name) for run in runs)
    themes = _json({"light": LIGHT, "dark": DARK})
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta name="generator" content="sweeper {__version__}">\n'
        f"<title>{title} - Sweeper report</title>\n"
        f"<style>{_asset('page.css')}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the results</a>\n'
        f"{_body(runs)}\n"
        f'<script type="application/json" id="themes">{themes}</script>\n'
        f"{load}\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _body(runs: Sequence[Run]) -> str:
    many = len(runs) > 1
    heads = "".join(_head(run, f"r{i}-", many=many) for i, run in enumerate(runs))
    first = runs[0]
    comparisons = "".join(
        _comparison(
            compare_info(
                (first.name, other.name),
                (first.study, other.study),
                (first.records, other.records),
            ),
            f"c{i}-",
        )
        for i, other in enumerate(runs[1:])
    )
    parts = []
    links = []
    for i, run in enumerate(runs):
        found = sections(run)
        name = f"{html_text(run.name)}: " if many else ""
        links += [f'<li><a href="#r{i}-{s.id}">{name}{html_text(s.title)}</a></li>' for s in found]
        parts += [_section(s, f"r{i}-", before=name) for s in found]
    if many:
        links.insert(0, '<li><a href="#c0-compare">What changed</a></li>')
    title = f"<h1>{len(runs)} runs side by side</h1>" if many else ""
    return (
        f'{title}<header class="{"pair" if many else "single"}">{heads}</header>\n'
        f'<nav aria-label="Parts of this page"><ul>{"".join(links)}</ul></nav>\n'
        '<noscript><p class="note">Figures need JavaScript, which is all in this page; tables do '
        f'not.</p></noscript>\n<main id="main">{comparisons}{"".join(parts)}</main>\n'
        '<p id="status" role="status" class="quiet"></p>\n'
        f"<footer>Sweeper {__version__}. All times and speeds are in engine seconds.</footer>"
    )


def _head(run: Run, prefix: str, *, many: bool) -> str:
    verdict = run.verdict
    mark = ""
    if run.simulated:
        mark = (
            '<p class="simulated" role="note"><strong>SIMULATED.</strong> These numbers come from '
            "a cost model, not from GPUs.</p>"
        )
    spent = sum(r.gpu_hours for r in run.records)
    launches = sum(r.launched for r in run.records)
    state = (
        f"{launches} of {run.study.budget.launches} launches, {number(spent)} GPU-hours, "
        f"{sum(r.failure is not None for r in run.records)} failed"
    )
    level = "h2" if many else "h1"
    return (
        f'<section class="verdict" aria-label="Verdict of {html_text(run.name)}">'
        f'<p class="name">{tables.user(run.name)} <span>{html_text(state)}</span></p>{mark}'
        f"<{level}>{tables.user(verdict.sentence)}</{level}>"
        f"{_tiles(run)}{_command(run, prefix)}{_notes(run)}</section>"
    )


def _notes(run: Run) -> str:
    items = "".join(f"<li>{tables.user(note)}</li>" for note in run.verdict.notes)
    return f'<ul class="note">{items}</ul>' if items else ""


def _tiles(run: Run) -> str:
    verdict, objective = run.verdict, run.study.objectives[0]
    words = measure(objective.metric)
    tiles: list[tuple[str, str, str]] = []
    if verdict.winner is not None:
        count = len(verdict.winner.records)
        tiles.append(("best setting", number(verdict.winner.values[0]), _launches(words, count)))
    band = baseline_band(run.records, objective)
    if band is not None:
        spread = f"{number(band.low)} to {number(band.high)}, " if band.high > band.low else ""
        # As the sentence has it: by its confirmations, drift taken out.
        level = verdict.baseline.values[0] if verdict.baseline else band.middle
        tiles.append(("measured baseline", number(level), spread + _launches(words, band.count)))
    if verdict.change is not None:
        change = verdict.change
        tiles.append(
            (
                "best to baseline",
                percent(change.mid),
                f"95 % interval {percent(change.low)} to {percent(change.high)}",
            )
        )
    line = reference(run.study, objective)
    if line is not None:
        tiles.append(("reference line", f"{line:g}", f"{words}, from elsewhere"))
    inner = "".join(
        f"<div><dt>{html_text(name)}</dt><dd><b>{html_text(value)}</b> "
        f"<small>{html_text(note)}</small></dd></div>"
        for name, value, note in tiles
    )
    return f'<dl class="tiles">{inner}</dl>' if inner else ""


def _launches(words: str, count: int) -> str:
    return f"{words}, {count} launch{'' if count == 1 else 'es'}"


def _command(run: Run, prefix: str) -> str:
    command = run.verdict.command
    if not command:
        return "<p>There is no command to run yet.</p>"
    if run.verdict.beats_baseline:
        words = "Run this"
    elif run.verdict.baseline is not None and run.verdict.baseline.broken and run.verdict.winner:
        words = "Run this: the best that keeps all limits; the baseline breaks one"
    elif run.verdict.baseline is not None:
        words = "Run this: the baseline, as nothing is shown to beat it"
    else:
        words = "The best so far, not compared with a baseline"
    hidden = ""
    if any(has_invisible(text) for text in command.splitlines()):
        hidden = '<p class="note">It holds invisible characters, shown here by number.</p>'
    return (
        f'<div class="command"><p id="{prefix}command-name">{words}</p>'
        f'<button type="button" data-copy="{html.escape(command)}" '
        f'aria-describedby="{prefix}command-name">Copy</button>'
        f'<pre dir="ltr" tabindex="0" aria-labelledby="{prefix}command-name">'
        f"{tables.html_text_lines(command)}</pre></div>{hidden}"
    )


def _comparison(info: CompareInfo, prefix: str) -> str:
    chart = Chart(
        id="same",
        title="The same settings in both runs",
        note="Points above the dashed line have a higher value in the later run.",
        figure=draw_compare(info),
    )
    names = " and ".join(tables.user(n) for n in info.names)
    section = Section(
        id="compare", title="What changed", charts=(chart,), html=tables.compare_tables(info)
    )
    return _section(section, prefix, suffix=f": {names}")


def _section(section: Section, prefix: str, *, before: str = "", suffix: str = "") -> str:
    charts = ""
    for css, found in (("figures", section.charts), ("figures small", section.small)):
        if found:
            figures = "".join(_figure(chart, prefix) for chart in found)
            charts += f'<div class="{css}">{figures}</div>'
    return (
        f'<section id="{prefix}{section.id}" aria-labelledby="{prefix}{section.id}-h">'
        f'<h2 id="{prefix}{section.id}-h">{before}{html_text(section.title)}{suffix}</h2>'
        f"{charts}{section.html}</section>\n"
    )


def _figure(chart: Chart, prefix: str) -> str:
    drawn = json.loads(chart.figure.to_json())
    layout: dict[str, Any] = drawn["layout"]
    # The page has the title as a heading and chooses the template by the reader's colours.
    layout.pop("template", None)
    layout.pop("title", None)
    layout.get("margin", {}).pop("t", None)
    height = layout["height"] = layout["height"] - TITLE
    name = f"{prefix}{chart.id}"
    note = f"<figcaption>{html_text(chart.note)}</figcaption>" if chart.note else ""
    return (
        f'<figure aria-labelledby="{name}-t"><h3 id="{name}-t">{html_text(chart.title)}</h3>'
        f'<div class="plot" id="{name}" style="min-height:{height}px"></div>'
        f'<script type="application/json" data-for="{name}">{_json(drawn)}</script>'
        f"{note}</figure>"
    )


def _json(value: object) -> str:
    """Return JSON that no HTML parser takes for markup."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@functools.cache
def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _asset(name: str) -> str:
    return (resources.files("sweeper.report") / "assets" / name).read_text(encoding="utf-8")
