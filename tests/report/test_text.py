"""Text from outside comes out harmless, whatever it holds."""

import html
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.objective import Objective
from sweeper.report.settings import axis_title
from sweeper.report.text import html_text, label, labels, number, percent, setting_lines
from sweeper.wording import amount, has_invisible, shorten, unit, visible

ANY = st.text(st.characters(), max_size=400)


@given(ANY)
def test_escaped_text_holds_no_markup_and_reads_back(text: str) -> None:
    escaped = html_text(text)
    assert not set("<>\"'") & set(escaped)
    assert html.unescape(escaped) == visible(text)


@given(ANY)
def test_a_label_holds_no_tag_is_short_and_can_be_written_as_utf8(text: str) -> None:
    written = label(text, 40)
    assert "<" not in written
    assert ">" not in written
    assert len(html.unescape(written)) <= 40
    written.encode()


@given(st.lists(st.text(st.sampled_from("ab<"), max_size=12), unique=True, max_size=20))
def test_unlike_texts_have_unlike_labels(texts: list[str]) -> None:
    found = labels(texts, 6)
    assert len(set(found)) == len(texts)
    assert not any("<" in written for written in found)


@given(ANY)
def test_visible_text_has_no_character_that_hides_or_turns_others(text: str) -> None:
    left = {c for c in visible(text) if unicodedata.category(c) in ("Cc", "Cf", "Cs")}
    assert left <= {"\u200c", "\u200d"}


def test_a_right_to_left_override_is_shown_by_its_number() -> None:
    assert visible("a\u202eb") == "a<U+202E>b"
    assert has_invisible("a\u202eb")
    assert not has_invisible("a b \U0001f469\u200d\U0001f680")


def test_a_long_path_keeps_its_end() -> None:
    path = "/models/" + "x" * 300 + "/draft"
    assert len(shorten(path, 30)) == 30
    assert shorten(path, 30).endswith("/draft")
    assert shorten("short", 30) == "short"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "n/a"), (0.0, "0.0"), (1234.56, "1,234.6"), (2.34, "2.34"), (0.0123, "0.0123")],
)
def test_a_missing_number_is_not_zero(value: float | None, text: str) -> None:
    assert number(value) == text


def test_a_ratio_is_a_signed_percentage() -> None:
    assert percent(1.044) == "+4.4 %"
    assert percent(0.9) == "-10.0 %"
    assert percent(None) == "n/a"


def test_a_setting_breaks_between_its_parameters() -> None:
    lines = setting_lines("draft=ours steps=3 topk=1", width=14)
    assert lines == ["draft=ours", "steps=3 topk=1"]
    assert len(setting_lines(" ".join(f"parameter{i}=x" for i in range(50)))) == 4


@pytest.mark.parametrize(
    ("metric", "title", "words"),
    [
        ("output_tok_s", "tok/s (busy)", "tok/s"),
        ("output_tok_s_per_gpu", "tok/s per GPU (busy)", "tok/s per GPU"),
        ("ttft_p99_ms", "TTFT p99, ms (busy)", "ms"),
        ("accept_length", "accept length (busy)", ""),
        ("accept_rate", "accept rate (busy)", ""),
        ("requests", "requests (busy)", ""),
    ],
)
def test_axes_say_metric_unit_and_workload(metric: str, title: str, words: str) -> None:
    assert axis_title(Objective(metric=metric, workload="busy")) == title
    assert unit(metric) == words


def test_an_amount_says_what_was_measured() -> None:
    assert amount(94.44, "output_tok_s", "single") == "94.4 tok/s (single)"
    assert amount(412.0, "ttft_p99_ms") == "412.0 ms TTFT p99"
    assert amount(0.4567, "accept_rate") == "0.457 accept rate"
    assert amount(3.0, "failed_requests") == "3 failed requests"
