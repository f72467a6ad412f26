"""What a sweep leaves for people, and what it says it left."""

from pathlib import Path

import pytest

from sweeper.config import parse_study
from sweeper.errors import UserError
from sweeper.records import Purpose, TrialRecord, TrialState
from sweeper.report.run import load_run
from sweeper.store import Store
from sweeper.terminal.results import print_results, write_results
from tests.build import make_launch, make_record
from tests.report.runs import RUNS, store_run
from tests.test_config import GOOD


@pytest.mark.parametrize("state", [TrialState.COMPLETE, TrialState.INFEASIBLE])
def test_a_command_is_named_only_where_there_is_one(
    state: TrialState, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = parse_study(GOOD, "space.yaml").resolved(gpus_present=False)
    record: TrialRecord = make_record(
        0, state=state, purpose=Purpose.BASELINE, launch=make_launch(simulated=True)
    )
    with Store(tmp_path / "runs" / "small") as store:
        store.create()
        store.keep_study(study.text)
        store.write(record)
        results = {"simulated": (study, [record], "it ended")}
        print_results(store, results, write_results(store, results))
        said = capsys.readouterr().out
        command = store.folder / "best.sh"
        assert command.exists() == (state is TrialState.COMPLETE)
        assert (f"launch command: {command}" in said) == command.exists()
        assert (store.folder / "report.html").exists()


@pytest.mark.parametrize("name", ["demo", "h200-one"])
def test_the_command_of_an_example_is_what_its_rows_say(name: str) -> None:
    folder = Path(__file__).parents[1] / "examples" / name
    verdict = load_run(folder).verdict
    comments = [f"# {line}" for line in (verdict.sentence, *verdict.notes)]
    text = "\n".join(["#!/bin/sh", *comments, verdict.command, ""])
    assert (folder / "best.sh").read_text(encoding="utf-8") == text


def test_a_disk_that_is_full_at_the_end_is_one_message(tmp_path: Path) -> None:
    study = parse_study(GOOD, "space.yaml").resolved(gpus_present=False)
    record = make_record(0, purpose=Purpose.BASELINE, launch=make_launch(simulated=True))
    with Store(tmp_path / "small") as store:
        store.create()
        store.write(record)
        (store.folder / ".best.sh.partial").symlink_to("/dev/full")
        with pytest.raises(UserError, match="No space left on device"):
            write_results(store, {"simulated": (study, [record], "it ended")})


def test_the_answer_is_printed_without_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RUNS["hostile"]()
    assert {"\x00", "\x1b", "\u202e"} & set(run.verdict.sentence)
    store_run(tmp_path / "run", run.study, list(run.records))
    with Store(tmp_path / "run") as store:
        results = {"": (run.study, run.records, "it ended")}
        print_results(store, results, {"": (run.verdict, "best.sh")})
    said = capsys.readouterr().out
    assert not {"\x00", "\x1b", "\u202e"} & set(said)
