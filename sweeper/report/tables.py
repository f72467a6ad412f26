"""Tables of the page, as HTML; every word from outside passes `html_text`."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sweeper.judging.standings import Standing, numbers, pareto_front, standings
from sweeper.objective import Objective
from sweeper.report.provenance import CompareInfo, provenance_info
from sweeper.report.run import Run
from sweeper.report.settings import axis_title
from sweeper.report.text import html_text, number, percent
from sweeper.report.tradeoffs import top_settings
from sweeper.report.trouble import FailureInfo, RefusedInfo, RewriteInfo
from sweeper.space import point_text
from sweeper.wording import shared

#: Settings in the table of the best ones, the baseline besides.
ROWS = 15
_NUMBERS = 12
CHOSEN = "chosen: the best median less its standard error, or a simpler one within 1 % of it"


def plain(text: str | None) -> str:
    """Return a figure's title as raw text again."""
    return html.unescape(text or "")


def user(text: str) -> str:
    """Return text from outside as HTML that keeps its writing direction to itself."""
    return f"<bdi>{html_text(text)}</bdi>"


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numeric: frozenset[int] = frozenset(),
) -> str:
    """Return a table that scrolls by itself; head and cells are HTML already.

    Args:
        caption: What it shows, HTML.
        head: Column titles.
        rows: Cells; the first of each row is its header.
        numeric: Columns that are aligned right.
    """

    def cell(index: int, text: str) -> str:
        css = ' class="n"' if index in numeric else ""
        if index == 0:
            return f'<th scope="row"{css}>{text}</th>'
        return f"<td{css}>{text}</td>"

    heads = "".join(
        f'<th scope="col"{" class=n" if i in numeric else ""}>{text}</th>'
        for i, text in enumerate(head)
    )
    body = "".join(
        "<tr>" + "".join(cell(i, text) for i, text in enumerate(row)) + "</tr>" for row in rows
    )
    return (
        f'<h3>{caption}</h3><div class="scroll" role="region" tabindex="0" '
        f'aria-label="{html.escape(plain(caption))}">'
        f"<table><caption>{caption}</caption><thead><tr>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


class _Beside(NamedTuple):
    """A number that stands beside the objectives, unless it is one."""

    metric: str
    head: str
    digits: int


_BESIDE = (
    _Beside("accept_length", "accept length", 2),
    _Beside("step_time_ms", "step, ms", 2),
    _Beside("ttft_p99_ms", "TTFT p99, ms", 0),
)


def settings_table(run: Run) -> str:
    """Return the best settings and the baseline, with what each showed."""
    study = run.study
    winner = run.verdict.winner
    chosen = top_settings(study, run.records, ROWS, winner.key if winner else None)
    if not chosen:
        return "<p>No setting was measured to the end yet.</p>"
    base = next((s for s in chosen if s.is_baseline), None)
    head = ["setting", *(html_text(axis_title(o)) for o in study.objectives), "to baseline"]
    objective = study.objectives[0]
    more = [m for m in _BESIDE if m.metric not in study.first_metrics]
    head += [*(m.head for m in more), "launches", "trials"]
    everything = standings(run.records, study.objectives, study.slos)
    whole = {s.key: s for s in everything}
    front = {s.key for s in pareto_front(everything, study.objectives)}
    common = shared([s.records[0].trial.point for s in _settings(chosen)])
    # As the figures have them: one launch may be far from its setting's median.
    others = [
        (_medians(run, Objective(metric=m.metric, workload=objective.workload)), m.digits)
        for m in more
    ]
    rows = []
    for standing in chosen:
        # Those chosen stand by the first objective, so that one that lacks another is there too.
        full = whole.get(standing.key, standing)
        values = numbers(full, run.records, study.objectives)
        ratio = None
        if base is not None and min(base.values[0], standing.values[0]) > 0:
            ratio = standing.values[0] / base.values[0]
        own = {k: v for k, v in standing.records[0].trial.point.items() if k not in common}
        name = "baseline" if standing.is_baseline else point_text(own)
        notes = [f"breaks {user(', '.join(standing.broken))}"] if standing.broken else []
        if winner is not None and standing.key == winner.key:
            notes.append(CHOSEN)
        if len(study.objectives) > 1 and standing.key in front:
            notes.append("on the Pareto front")
        if standing.is_confirmed and not standing.is_baseline:
            notes.append("launched again to confirm it")
        note = "; ".join(notes)
        rows.append(
            [
                user(name) + (f"<br><small>{note}</small>" if note else ""),
                *(number(v) for v in values),
                "" if standing.is_baseline else percent(ratio),
                *(number(o.get(standing.key), digits) for o, digits in others),
                str(len(standing.records)),
                _numbers([r.trial.number for r in standing.records]),
            ]
        )
    found = table(
        f"The {len(_settings(chosen))} best settings by {html_text(axis_title(objective))}; "
        "medians over launches, over those that confirm a setting where there are some",
        head,
        rows,
        numeric=frozenset(range(1, len(head) - 1)),
    )
    words = f"<p>All of these settings have {user(point_text(common))}.</p>" if common else ""
    return found + words


def _medians(run: Run, objective: Objective) -> Mapping[str, float]:
    return {s.key: s.values[0] for s in standings(run.records, (objective,))}


def _settings(chosen: Sequence[Standing]) -> list[Standing]:
    return [s for s in chosen if not s.is_baseline]


def _numbers(found: Sequence[int]) -> str:
    shown = ", ".join(str(n) for n in found[:_NUMBERS])
    return shown + (f" and {len(found) - _NUMBERS} more" if len(found) > _NUMBERS else "")


def failure_table(info: FailureInfo) -> str:
    """Return failures by class with the line of the log and the remedy."""
    if not info.classes:
        return "<p>Nothing failed.</p>"
    rows = [
        [
            f"<code>{c.kind}</code>",
            str(len(c.trials)),
            html_text(", ".join(s.replace("_", " ") for s in c.stages)),
            f"<code>{user(c.line[:600])}</code>"
            + (f"<br><small>last of them: {user(c.log)}</small>" if c.log else ""),
            html_text(c.remedy)
            + (f"<br><small>{_again(c.recovered)}</small>" if c.recovered else ""),
            str(c.fault),
            _more([user(s) for s in c.settings], "settings"),
            _numbers(c.trials),
        ]
        for c in info.classes
    ]
    head = ["class", "trials", "stage", "line that shows it", "remedy"]
    head += ["whose fault", "settings", "trial numbers"]
    return table("Failures by class", head, rows, numeric=frozenset({1}))


def _again(recovered: Sequence[int]) -> str:
    what = "trial" if len(recovered) == 1 else "trials"
    return f"tried again and measured: {what} {_numbers(recovered)}"


def rewrite_table(info: RewriteInfo) -> str:
    """Return flags that the engine set otherwise than asked."""
    if not info.rewrites:
        return "<p>No server reported another value than the one it was asked for.</p>"
    rows = [
        [
            f"<code>--{user(r.flag)}</code>",
            f"<code>{user(r.asked)}</code>",
            f"<code>{user(r.effective)}</code>",
            str(len(r.trials)),
            _numbers(r.trials),
        ]
        for r in info.rewrites
    ]
    head = ["flag", "asked", "effective", "launches", "trial numbers"]
    return table("Settings that the engine rewrote", head, rows, numeric=frozenset({3}))


def refused_table(info: RefusedInfo) -> str:
    """Return what was never launched and why."""
    left = "" if info.complete else " The space is too large to be listed whole."
    words = (
        f"<p>{info.settings:,} distinct settings can be launched; {info.merged:,} more points "
        f"of the space mean one of these.{left}</p>"
    )
    if not info.refused:
        return words + "<p>No setting was refused.</p>"
    rows = [
        [user(r.reason), f"{r.count:,}", _more([user(e) for e in r.examples], "examples", r.count)]
        for r in info.refused
    ]
    return words + table(
        "Settings refused before any start",
        ["reason", "points", "examples"],
        rows,
        numeric=frozenset({1}),
    )


def _more(items: Sequence[str], what: str, count: int | None = None) -> str:
    if len(items) == 1:
        return items[0]
    inner = "".join(f"<li>{item}</li>" for item in items[:10])
    shown = f"{min(len(items), 10)} of {count or len(items):,} {what}"
    return f"<details><summary>{shown}</summary><ul>{inner}</ul></details>"


def problem_list(problems: Sequence[str]) -> str:
    """Return what could not be read."""
    if not problems:
        return ""
    items = "".join(f"<li>{user(p)}</li>" for p in problems)
    return f"<h3>Left out of this page</h3><ul>{items}</ul>"


def provenance_table(run: Run) -> str:
    """Return versions, hardware and places."""
    rows = [
        [html_text(name), "<br>".join(user(v) for v in values[:40]) or "n/a"]
        for name, values in provenance_info(run.study, run.records).rows
    ]
    source = (
        "<details><summary>The space file</summary>"
        f'<pre tabindex="0">{html_text_lines(run.study.text)}</pre></details>'
    )
    return table("Where the numbers come from", ["what", "value"], rows) + source


def html_text_lines(text: str) -> str:
    """Return text of several lines for a <pre> element."""
    return "\n".join(html_text(line) for line in text.splitlines())


def compare_tables(info: CompareInfo) -> str:
    """Return what changed between two runs, and the settings that both measured."""
    names = [user(n) for n in info.names]
    changed = [
        [
            html_text(name),
            "<br>".join(user(v) for v in a[:20]) or "n/a",
            "<br>".join(user(v) for v in b[:20]) or "n/a",
        ]
        for name, a, b in info.changed
    ]
    common = [
        [user(c.setting), number(c.values[0]), number(c.values[1]), percent(c.ratio)]
        for c in info.common[:40]
    ]
    parts = [
        table("What changed", ["what", *names], changed)
        if changed
        else "<p>Both runs have the same provenance.</p>",
        table(
            f"Settings in both runs, {html_text(axis_title(info.objective))}, largest change first",
            ["setting", *names, "change"],
            common,
            numeric=frozenset({1, 2, 3}),
        )
        if common
        else "<p>No setting was measured in both runs.</p>",
        f"<p>Measured in one run only: {info.only[0]} and {info.only[1]} settings.</p>",
    ]
    if info.diff:
        lines = "\n".join(html_text(line) for line in info.diff)
        parts.append(
            "<details><summary>What changed in the space file</summary>"
            f'<pre tabindex="0">{lines}</pre></details>'
        )
    return "".join(parts)
