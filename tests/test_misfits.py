"""Stored trials that a changed space file leaves out of what is shown."""

from dataclasses import replace

import pytest

from sweeper.errors import FailureClass
from sweeper.planning.misfits import comparable, misfit
from sweeper.records import TrialRecord
from sweeper.report.run import make_run
from tests.report import build

STUDY = build.small_study()


def records() -> list[TrialRecord]:
    return [
        build.record(STUDY, 0, tok_s=90.0),
        build.record(STUDY, 1, build.point(1), tok_s=80.0),
        build.record(STUDY, 2, build.point(3), tok_s=99.0),
    ]


def test_all_trials_of_an_unchanged_file_are_shown() -> None:
    assert comparable(records(), STUDY) == (tuple(records()), [])
    assert comparable([], STUDY) == ((), [])


@pytest.mark.parametrize(
    ("old", "new", "left", "why"),
    [
        ("values: [1, 2, 3]", "values: [1, 2]", [2], "outside the space"),
        ("tp-size: 2", "tp-size: 4", None, "no trial fits"),
        ("reference_tok_s: 90", "reference_tok_s: 95", [], ""),
        ("/models/ours", "/models/new", [1, 2], "flags that all launches share"),
    ],
)
def test_trials_that_mean_something_else_now_are_left_out(
    old: str, new: str, left: list[int] | None, why: str
) -> None:
    study = build.small_study(build.SPACE.replace(old, new))
    kept, reasons = comparable(records(), study)
    assert why in " ".join(reasons)
    numbers = {r.trial.number for r in kept}
    assert numbers == ({0, 1, 2} if left is None else {0, 1, 2} - set(left))


def test_trials_of_other_workloads_do_not_win() -> None:
    old, new = records(), records()
    old = [replace(r, trial=replace(r.trial, context="before")) for r in old]
    new = [replace(r, trial=replace(r.trial, number=r.trial.number + 3)) for r in new[:2]]
    run = make_run("run", STUDY, [*old, *new], build.reader([]))
    assert [r.trial.number for r in run.records] == [3, 4]
    assert any("3 of the stored trials: other workloads" in p for p in run.problems)
    assert run.verdict.winner is not None
    assert run.verdict.winner.values == (80.0,)


def test_failures_of_a_broken_installation_stay_in_sight() -> None:
    broken = build.failed(STUDY, 3, build.point(2), FailureClass.BUILD_MISSING)
    kept, _ = comparable([*records(), broken], STUDY)
    assert broken in kept


def test_the_search_and_the_report_name_the_same_reasons() -> None:
    record = records()[2]
    study = build.small_study(build.SPACE.replace("values: [1, 2, 3]", "values: [1, 2]"))
    base = study.baseline_launch().key
    assert misfit(record, study, baseline_key=base, context="") == (
        "their setting is outside the space"
    )
