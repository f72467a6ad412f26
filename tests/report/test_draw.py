"""Drawings say what their Info holds: one place for each thing, and texts escaped once."""

import json
from collections.abc import Sequence

import plotly.graph_objects as go
import pytest

from sweeper.report.draw_effects import draw_failures, draw_marginal, draw_paired
from sweeper.report.draw_prompts import draw_gain, draw_prompts
from sweeper.report.draw_tradeoffs import draw_accept, draw_what_if
from sweeper.report.effects import marginal_info, paired_info
from sweeper.report.prompts import GainInfo, PromptInfo, PromptSpeeds
from sweeper.report.tradeoffs import AcceptInfo, Step, WhatIfInfo
from sweeper.report.trouble import failure_info
from tests.report import build

#: Paths that are the same at both ends, as those of checkpoints are.
DRAFTS = [f"/models/eagle3-{name}/checkpoints/epoch_10/model" for name in ("v1", "v2", "large")]
STUDY = build.small_study(
    build.SPACE.replace(
        "choices: {ours: /models/ours, theirs: /models/theirs}", f"values: {json.dumps(DRAFTS)}"
    )
)
RECORDS = [
    build.record(STUDY, n, build.point(draft=d), tok_s=80.0 + n) for n, d in enumerate(DRAFTS)
]


def places(figure: go.Figure, axis: str) -> set[str]:
    """Return the categories that a figure's markers stand on."""
    return {str(v) for trace in figure.data for v in trace[axis]}


def test_values_that_are_alike_at_both_ends_have_a_column_each() -> None:
    found = places(draw_marginal(marginal_info(STUDY, RECORDS, "draft")), "x")
    assert len(found) == 3
    assert [any(name in place for place in found) for name in ("v1", "v2", "large")] == [True] * 3


def test_values_that_are_alike_at_both_ends_have_a_row_of_pairs_each() -> None:
    assert len(places(draw_paired(paired_info(STUDY, RECORDS, "draft")), "y")) == 2


def test_lines_of_equal_speed_stay_within_the_axes() -> None:
    steps = [
        Step(
            number=n, setting="a", accept_length=length, step_time_ms=ms, tok_s=None,
            is_baseline=n == 0,
        )
        for n, (length, ms) in enumerate(((1.0, 11.0), (2.5, 15.0)))
    ]  # fmt: skip
    info = AcceptInfo(
        workload="single", steps=tuple(steps), levels=(50.0, 100.0, 150.0), reference=20.0,
        simulated=False,
    )  # fmt: skip
    figure = draw_accept(info)
    low, high = figure.layout.xaxis.range
    ends = [trace.x[-1] for trace in figure.data if trace.mode == "lines+text"]
    assert len(ends) >= 2
    assert all(low <= end <= high for end in ends)


def test_settings_that_are_alike_at_both_ends_have_a_row_each() -> None:
    settings = [
        f"draft=ours steps={s} topk=4 draft_tokens={t} cuda_graph=on nccl=default draft_tp=shared"
        for s in (2, 3)
        for t in (4, 8, 16)
    ]
    info = WhatIfInfo(
        accept_length=3.0,
        settings=tuple(settings),
        measured_tok_s=(1.0,) * 6,
        supposed_tok_s=(2.0,) * 6,
        baseline_tok_s=None,
        simulated=False,
    )
    assert len(places(draw_what_if(info), "y")) == 6


def _prompts(names: Sequence[str]) -> PromptInfo:
    row = PromptSpeeds(setting="a", is_baseline=False, speeds=((50.0,),) * len(names))
    kinds = tuple((name, "<chat>") for name in names)
    return PromptInfo(workload="single", prompts=kinds, settings=(row,), simulated=False)


def test_prompts_that_are_alike_at_both_ends_have_a_place_each() -> None:
    names = [f"long-conversation-{i}-with-tools-and-images" for i in range(12)]
    info = _prompts(names)
    assert len(places(draw_prompts(info), "x")) == 12
    gain = GainInfo(
        setting="a", workload="single", prompts=info.prompts, ratios=(1.1,) * 12, overall=None,
        simulated=False,
    )  # fmt: skip
    assert len(places(draw_gain(gain), "y")) == 12


@pytest.mark.parametrize("word", ["<class 'ValueError'>", "a & b"])
def test_a_hover_shows_a_text_as_it_is(word: str) -> None:
    escaped = word.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    failed = failure_info([build.failed(STUDY, 0, build.point(draft=DRAFTS[0]), line=word)])
    assert escaped in draw_failures(failed).data[0].hovertext[0]
    assert escaped in draw_prompts(_prompts([word])).data[0].hovertext[0]
    gain = GainInfo(
        setting="a", workload="single", prompts=((word, "chat"),), ratios=(1.1,), overall=None,
        simulated=False,
    )  # fmt: skip
    assert escaped in draw_gain(gain).data[0].hovertext[0]
