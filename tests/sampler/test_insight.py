"""Importances, and the file for optuna-dashboard."""

from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from sweeper.errors import FailureClass
from sweeper.planning.plan import make_plan
from sweeper.records import Point, TrialRecord, TrialState
from sweeper.sampler import export_sqlite, importances, make_sampler
from sweeper.sampler.replay import finished_trial
from tests.sampler.worlds import SMALL, record, small_study, sweep


@pytest.mark.parametrize("launches", [12, 30])
def test_the_parameter_that_matters_is_named_first(launches: int) -> None:
    study = small_study(sampler="random")

    def nccl_matters(number: int, point: Point) -> TrialRecord:
        factor = {"ring": 2.0, "tree": 1.5}.get(str(point.get("nccl")), 1.0)
        return record(study, number, point, speed=lambda _: 50.0 * factor + 0.01 * number)

    records, _ = sweep(study, launches, tell=nccl_matters)
    found = importances(records, study)
    assert next(iter(found)) == "nccl"
    assert found["nccl"] > 0.9
    assert sum(found.values()) == pytest.approx(1.0)


def test_nothing_measured_gives_no_importances() -> None:
    study = small_study()
    assert importances([], study) == {}
    assert importances([record(study, 0, {})], study) == {}


def test_the_exported_file_holds_every_trial_as_it_ended(tmp_path: Path) -> None:
    study = small_study(SMALL + "slo: [single.ttft_p99_ms < 500]\n")

    def some_break(number: int, point: Point) -> TrialRecord:
        broken = number in (4, 7)
        state = TrialState.INFEASIBLE if broken else TrialState.COMPLETE
        return record(study, number, point, state=state, kind=FailureClass.OOM)

    records, _ = sweep(study, 10, tell=some_break)
    path = tmp_path / "some folder" / "study.db"
    export_sqlite(records, study, path)
    export_sqlite(records, study, path)
    assert [p.name for p in path.parent.iterdir()] == ["study.db"]
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    loaded = optuna.load_study(study_name="small", storage=storage)
    trials = loaded.trials
    storage.engine.dispose()
    assert len(trials) == 10
    failed = [t for t in trials if t.state is optuna.trial.TrialState.FAIL]
    assert [t.user_attrs["number"] for t in failed] == [4, 7]
    assert "broke" in failed[0].user_attrs["reason"]
    assert loaded.best_value == max(
        r.measurements[0].output_tok_s or 0.0 for r in records if r.measurements
    )
    assert trials[1].constraints == {"single.ttft_p99_ms < 500": -400.0}


def test_a_trial_stopped_early_keeps_what_it_measured() -> None:
    study = small_study()
    done = record(study, 3, study.space.canonical({"steps": 2}))
    pruned = replace(done, state=TrialState.PRUNED)
    trial = finished_trial(pruned, study.space, study.objectives, study.slos)
    assert trial is not None
    assert trial.state is optuna.trial.TrialState.PRUNED
    assert trial.value == done.measurements[0].output_tok_s
    assert trial.intermediate_values == {0: trial.value}
    empty = replace(pruned, measurements=())
    lost = finished_trial(empty, study.space, study.objectives, study.slos)
    assert lost is not None
    assert lost.state is optuna.trial.TrialState.FAIL


def test_a_limit_of_a_workload_that_was_not_sent_yet_is_unknown() -> None:
    text = SMALL.replace("workload: single}]", "workload: busy}]")
    study = small_study(text + "slo: [ttft_p99_ms < 500]\nbudget: {prune_confidence: 0.99}\n")
    assert [w.name for w in study.sent] == ["busy", "single"]
    done = record(study, 3, study.space.canonical({"steps": 2}), ttft_ms=2000.0)
    only = replace(done, state=TrialState.PRUNED, measurements=done.measurements[1:])
    trial = finished_trial(only, study.space, study.objectives, study.slos)
    assert trial is not None
    assert trial.value == done.measurements[1].output_tok_s
    assert trial.constraints == {}


def test_a_sampler_avoids_what_was_stopped_early() -> None:
    """TPE ranks trials stopped early behind all complete ones."""
    study = small_study(sampler="tpe")
    plan = make_plan(study)
    sampler = make_sampler(study, plan)
    points = [point for point, _ in plan.settings.values()]
    taken = set()
    for number, point in enumerate(points[:24]):
        done = record(study, number, point)
        slow = point["steps"] != 2
        sampler.tell(replace(done, state=TrialState.PRUNED) if slow else done)
        taken.add(done.trial.launch.key)
    assert sampler.ask(taken) is not None
