"""The page as HTML: whole, self-contained, harmless, whatever the run holds."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from sweeper.objective import Objective
from sweeper.records import Measurement, Purpose, TrialRecord
from sweeper.report.page import PLOTLY_FILE, render
from sweeper.report.run import Run
from sweeper.report.sections import sections
from sweeper.report.tables import settings_table
from sweeper.report.theme import STAMP
from sweeper.report.tradeoffs import pareto_info
from tests.report import build
from tests.report.runs import HOSTILE, RUNS, run_of

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Reads a page and keeps what tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            attrs, before = self.scripts.pop()
            self.scripts.append((attrs, before + data))
        else:
            self.text += data

    def values(self, attribute: str) -> list[str]:
        return [str(attrs[attribute]) for _, attrs in self.tags if attribute in attrs]


@pytest.fixture(params=sorted(RUNS))
def run(request: pytest.FixtureRequest) -> Run:
    return RUNS[request.param]()


def test_a_page_of_any_run_is_whole_and_asks_no_network(run: Run) -> None:
    page = Page(render([run], plotly="directory"))
    assert page.values("src") == [PLOTLY_FILE]
    assert all(href.startswith("#") for href in page.values("href"))
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {href[1:] for href in page.values("href")} <= set(ids)
    assert page.tags.count(("main", {"id": "main"})) == 1
    assert [tag for tag, _ in page.tags].count("h1") == 1
    for reference in ("aria-labelledby", "aria-describedby", "data-for"):
        assert set(page.values(reference)) <= set(ids)


@pytest.mark.parametrize("name", ["empty", "hostile"])
def test_only_our_two_scripts_may_run(name: str) -> None:
    page = Page(render([RUNS[name]()]))
    assert page.values("src") == []
    policy = next(str(a["content"]) for t, a in page.tags if t == "meta" and "http-equiv" in a)
    ours = [body for attrs, body in page.scripts if "type" not in attrs]
    assert len(ours) == 2
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in ours]
    scripts = re.search(r"script-src ([^;]*);", policy)
    assert scripts is not None
    assert scripts.group(1).split() == [f"'sha256-{h}'" for h in hashes]
    assert "default-src 'none'" in policy
    handlers = [a for _, attrs in page.tags for a in attrs if a.startswith("on")]
    assert handlers == []


def test_every_figure_of_simulated_rows_says_so_in_itself(run: Run) -> None:
    for section in sections(run):
        for chart in (*section.charts, *section.small):
            drawn = json.loads(chart.figure.to_json())
            if not drawn["data"]:
                continue
            notes = [n["text"] for n in drawn["layout"].get("annotations", ())]
            assert (STAMP in notes) == run.simulated, chart.id


def test_figures_hold_no_tag_but_line_breaks(run: Run) -> None:
    for section in sections(run):
        for chart in (*section.charts, *section.small):
            drawn = json.loads(chart.figure.to_json())
            drawn["layout"].pop("template")
            for text in _texts(drawn):
                bare = text.replace("<br>", "")
                assert "<" not in bare, chart.id
                assert "\u202e" not in bare
                assert len(text) < 600


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def test_a_secret_in_the_space_file_is_not_on_the_page() -> None:
    study = build.small_study(build.SPACE.replace("tp-size: 2", "tp-size: 2, api-key: s3cret"))
    text = render([run_of(study, [build.record(study, 0, tok_s=90.0)])] * 2, plotly="directory")
    assert "api-key" in text
    assert "s3cret" not in text


def test_hostile_texts_are_shown_as_text() -> None:
    page = Page(render([RUNS["hostile"]()], plotly="directory"))
    assert "document.title='broken'" in page.text
    assert not [tag for tag, _ in page.tags if tag in ("img", "i", "b") and tag != "b"]
    assert "\u202e" not in page.text
    assert "<U+202E>" in page.text
    assert HOSTILE[5] in page.text


def test_the_copied_command_is_the_one_shown() -> None:
    run = RUNS["a_night"]()
    page = Page(render([run], plotly="directory"))
    (copied,) = page.values("data-copy")
    assert copied == run.verdict.command
    assert copied in page.text


def test_a_command_with_invisible_characters_says_so_and_copies_the_real_one() -> None:
    run = RUNS["hostile"]()
    text = render([run], plotly="directory")
    (copied,) = Page(text).values("data-copy")
    assert copied == run.verdict.command
    assert ("invisible characters" in text) == any(ord(c) < 32 and c != "\n" for c in copied)


def test_the_first_screen_says_whether_the_baseline_is_beaten() -> None:
    run = RUNS["a_night"]()
    text = render([run], plotly="directory")
    head = text[text.index("<header") : text.index("</header>")]
    assert html.escape(run.verdict.sentence) in head
    assert "measured baseline" in head
    assert "reference line" in head
    assert "SIMULATED" in head


def test_a_real_run_is_not_called_simulated() -> None:
    assert STAMP not in render([RUNS["real"]()], plotly="directory")


def test_the_page_beside_a_shared_script_is_small() -> None:
    text = render([RUNS["a_night"]()], plotly="directory")
    assert len(text) < 400_000
    assert Page(text).values("src") == [PLOTLY_FILE]


def test_several_runs_stand_side_by_side_with_what_changed() -> None:
    study = build.study()
    other = run_of(study, build.night(study, 16, seed=5), name="after <upgrade>")
    page = Page(render([RUNS["a_night"](), other, RUNS["empty"]()], plotly="directory"))
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {"c0-compare", "c1-compare", "r0-progress", "r1-progress", "r2-progress"} <= set(ids)
    assert "after <upgrade>" in page.text


def test_a_thousand_trials_still_fit_into_one_page() -> None:
    study = build.study()
    run = run_of(study, build.night(study, 1000))
    assert len(render([run]).encode()) < 6_000_000


def test_the_table_has_the_medians_that_the_figures_show() -> None:
    study = build.small_study()

    def launched(number: int, purpose: Purpose, ttft: float, step: float) -> TrialRecord:
        measured = Measurement(
            workload="single", requests=5, output_tok_s=90.0, ttft_p99_ms=ttft,
            accept_length=step / 10, step_time_ms=step,
        )  # fmt: skip
        return build.record(
            study, number, build.point(2), purpose=purpose, measurements=[measured]
        )

    records = [launched(0, Purpose.SEARCH, 900.0, 29.0)]
    for number, (ttft, step) in enumerate(((300.0, 21.0), (400.0, 23.0), (500.0, 25.0)), start=1):
        records.append(launched(number, Purpose.CONFIRM, ttft, step))
    run = run_of(study, records)
    plane = [Objective(metric=m, workload="single") for m in ("output_tok_s", "ttft_p99_ms")]
    (shown,) = pareto_info(study, records, plane[0], plane[1]).candidates
    assert shown.y == 400.0
    cells = re.findall(r'<td class="n">([^<]*)</td>', settings_table(run))
    assert cells == ["90.0", "n/a", "2.30", "23.00", "400", "4"]


def test_what_all_settings_share_is_said_once() -> None:
    study = build.small_study()
    records = [build.record(study, 0, tok_s=90.0)]
    records += [build.record(study, n, build.point(n), tok_s=80.0 + n) for n in (1, 2, 3)]
    text = settings_table(run_of(study, records))
    assert text.count("nccl=default") == 1
    assert "All of these settings have <bdi>draft=ours topk=1 nccl=default</bdi>" in text


def test_three_objectives_get_a_plane_for_each_pair_and_marks_of_their_common_front() -> None:
    study = build.study("two-objectives")
    third = Objective(metric="ttft_p99_ms", maximize=False, workload="single")
    study = replace(study, objectives=(*study.objectives, third))
    run = run_of(study, build.night(study, 24))
    planes = [c for s in sections(run) for c in s.charts if c.id.startswith("pareto-")]
    assert len({c.title for c in planes}) == len(planes) >= 3
    assert "front of" not in planes[0].note
    assert "the table marks the study's" in planes[0].note
    assert "on the Pareto front" in settings_table(run)


def test_notes_of_the_verdict_stand_below_the_command() -> None:
    run = RUNS["a_night"]()
    run = replace(run, verdict=replace(run.verdict, notes=("look <here>",)))
    text = render([run], plotly="directory")
    assert text.index("data-copy") < text.index("look &lt;here&gt;") < text.index("</header>")


def test_a_baseline_that_breaks_a_limit_is_not_named_above_the_winners_command() -> None:
    study = build.small_study(build.SPACE + "slo: [ttft_p99_ms < 500]\n")

    def measured(tok_s: float, ttft: float) -> list[Measurement]:
        return [
            Measurement(workload="single", requests=5, output_tok_s=tok_s, ttft_p99_ms=ttft),
        ]

    run = run_of(
        study,
        [
            build.record(study, 0, measurements=measured(90.0, 900.0)),
            build.record(study, 1, build.point(1), measurements=measured(80.0, 100.0)),
        ],
    )
    text = render([run], plotly="directory")
    assert "speculative-num-steps 1" in run.verdict.command
    assert "Run this: the best that keeps all limits; the baseline breaks one" in text
    assert "as nothing is shown to beat it" not in text


@pytest.mark.parametrize(
    ("objective", "shaded"),
    [("maximize: output_tok_s", True), ("minimize: ttft_p99_ms", False)],
)
def test_the_gain_by_prompt_is_shaded_only_with_the_interval_of_a_speed(
    objective: str, shaded: bool
) -> None:
    study = build.small_study(build.SPACE.replace("maximize: output_tok_s", objective))
    records = [
        build.record(
            study,
            number,
            at,
            measurements=[
                Measurement(
                    workload="single", requests=5, output_tok_s=90.0 + number, ttft_p99_ms=ttft
                )
            ],
            requests=build.requests(seed=number),
        )
        for number, (at, ttft) in enumerate(((None, 810.0), (build.point(1), 404.0)))
    ]
    run = run_of(study, records)
    assert run.verdict.ratio is not None
    (chart,) = [c for s in sections(run) for c in s.charts if c.id == "gain-by-prompt"]
    assert ("shade" in chart.note) is shaded
    assert ("over all, 95 % interval" in chart.figure.to_json()) is shaded
