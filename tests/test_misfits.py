"""Stored trials that a changed space file leaves out of what is shown."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sweeper.errors import FailureClass
from sweeper.planning.misfits import comparable, misfit
from sweeper.records import HostFacts, TrialRecord
from sweeper.report.run import load_run, make_run
from sweeper.store import Store
from sweeper.terminal.look import look
from tests.report import build
from tests.report.runs import store_run

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


@pytest.mark.parametrize("gpu_name", [None, "simulated"])
def test_a_folder_that_was_simulated_first_is_shown_as_what_is_real_in_it(
    tmp_path: Path, gpu_name: str | None
) -> None:
    text = build.SPACE.replace("kind: simulated", "kind: auto")
    study = build.small_study(text)
    found = []
    for number, (real, at, tok_s) in enumerate(
        (
            (False, None, 300.0),
            (False, build.point(1), 500.0),
            (True, None, 90.0),
            (True, build.point(1), 80.0),
            (True, build.point(3), 99.0),
        )
    ):
        as_launched = study.resolved(gpus_present=real)
        name = "NVIDIA H200" if real else gpu_name
        host = HostFacts(host="node", slot="slot-0", gpu_name=name)
        record = build.record(as_launched, number, at, tok_s=tok_s, host=host)
        found.append(replace(record, trial=replace(record.trial, context=as_launched.context)))
    store_run(tmp_path / "run", study, found)
    run, seen = load_run(tmp_path / "run"), look(tmp_path / "run", datetime.now(UTC))
    assert run.verdict.sentence == seen.verdict.sentence
    assert "SIMULATED" not in seen.verdict.sentence
    assert not run.simulated
    assert [r.trial.number for r in run.records] == [2, 3, 4]
    assert [r.trial.number for r in seen.records] == [2, 3, 4]


def test_a_sweep_without_a_row_yet_is_not_called_simulated(tmp_path: Path) -> None:
    study = build.small_study(build.SPACE.replace("kind: simulated", "kind: auto"))
    store_run(tmp_path / "run", study, [])
    with Store(tmp_path / "run") as store:
        store.lock()
        seen = look(tmp_path / "run", datetime.now(UTC))
    assert seen.driver is not None
    assert not seen.verdict.simulated
    assert not load_run(tmp_path / "run").simulated
