"""What parameters do, on figures worked out by hand."""

import pytest

from sweeper.errors import UserError
from sweeper.report.effects import (
    HeatInfo,
    HeatMap,
    ImportanceInfo,
    MarginalInfo,
    Pair,
    PairedInfo,
    heat_info,
    importance_info,
    marginal_info,
    paired_info,
)
from tests.report import build

STUDY = build.small_study()
SPEED = STUDY.objectives[0]
OURS = "draft=ours steps={} topk=1 draft_tokens={} nccl={}"


def test_a_heat_map_shows_the_best_setting_of_each_cell_on_common_axes() -> None:
    records = [
        build.record(STUDY, 0, tok_s=90.0),
        build.record(STUDY, 1, build.point(2), tok_s=80.0),
        build.record(STUDY, 2, build.point(2, "tree"), tok_s=94.0),
        build.record(STUDY, 3, build.point(3, draft="theirs"), tok_s=50.0),
    ]
    theirs = "draft=theirs steps=3 topk=1 draft_tokens=4 nccl=default"
    assert heat_info(STUDY, records) == HeatInfo(
        objective=SPEED,
        maps=(
            HeatMap(
                draft="ours",
                steps=(2, 3),
                draft_tokens=(3, 4),
                values=((94.0, None), (None, None)),
                settings=((OURS.format(2, 3, "tree"), None), (None, None)),
                counts=((2, 0), (0, 0)),
            ),
            HeatMap(
                draft="theirs",
                steps=(2, 3),
                draft_tokens=(3, 4),
                values=((None, None), (None, 50.0)),
                settings=((None, None), (None, theirs)),
                counts=((0, 0), (0, 1)),
            ),
        ),
        low=50.0,
        high=94.0,
        simulated=True,
    )


def test_pairs_differ_in_one_chosen_value_only() -> None:
    records = [
        build.record(STUDY, 0, build.point(2), tok_s=80.0),
        build.record(STUDY, 1, build.point(2, "tree"), tok_s=88.0),
        build.record(STUDY, 2, build.point(3), tok_s=100.0),
        build.record(STUDY, 3, build.point(3, "tree"), tok_s=100.0),
        build.record(STUDY, 4, build.point(1, "tree"), tok_s=70.0),
    ]
    others = "draft=ours steps={} topk=1"
    info = paired_info(STUDY, records, "nccl")
    assert info.ratios == pytest.approx((1.1**0.5,))
    assert info == PairedInfo(
        parameter="nccl",
        reference="default",
        choices=("tree",),
        pairs=(
            (
                Pair(others=others.format(2), reference=80.0, other=88.0, ratio=1.1),
                Pair(others=others.format(3), reference=100.0, other=100.0, ratio=1.0),
            ),
        ),
        ratios=info.ratios,
        simulated=True,
    )


def test_a_derived_value_does_not_spoil_a_pair() -> None:
    records = [
        build.record(STUDY, 0, build.point(1), tok_s=80.0),
        build.record(STUDY, 1, build.point(3), tok_s=60.0),
    ]
    info = paired_info(STUDY, records, "steps")
    assert info.choices == (3,)
    assert list(info.ratios) == pytest.approx([0.75])


def test_a_derived_value_is_not_compared_itself() -> None:
    records = [
        build.record(STUDY, 0, build.point(1), tok_s=80.0),
        build.record(STUDY, 1, build.point(3), tok_s=60.0),
    ]
    assert paired_info(STUDY, records, "draft_tokens").choices == ()


def test_a_ratio_above_one_is_better_where_less_is_better() -> None:
    study = build.small_study(build.SPACE.replace("maximize", "minimize"))
    records = [
        build.record(study, 0, build.point(2), tok_s=100.0),
        build.record(study, 1, build.point(2, "tree"), tok_s=50.0),
    ]
    assert list(paired_info(study, records, "nccl").ratios) == pytest.approx([2.0])


def test_an_unknown_parameter_is_named_with_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'nccl'"):
        paired_info(STUDY, [], "ncll")
    with pytest.raises(UserError, match="no parameter"):
        marginal_info(STUDY, [], "x")


def test_marginals_take_each_setting_once() -> None:
    records = [
        build.record(STUDY, 0, build.point(3), tok_s=80.0),
        build.record(STUDY, 1, build.point(3), tok_s=84.0),
        build.record(STUDY, 2, build.point(3, "tree"), tok_s=90.0),
        build.record(STUDY, 3, build.point(1), tok_s=70.0),
    ]
    assert marginal_info(STUDY, records, "steps") == MarginalInfo(
        objective=SPEED,
        parameter="steps",
        choices=(1, 3),
        values=((70.0,), (82.0, 90.0)),
        medians=(70.0, 86.0),
        simulated=True,
    )


def test_importances_are_ranked() -> None:
    assert importance_info(STUDY, [], {"a": 0.2, "b": 0.8}) == ImportanceInfo(
        objective=SPEED, parameters=("b", "a"), shares=(0.8, 0.2), simulated=False
    )
