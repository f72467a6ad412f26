"""Servers that stand side by side are measured in turn, and none is left."""

import os
import signal
from pathlib import Path

import pytest

from scripts.side_by_side import Extent, main, run
from scripts.standing import Scene, counters, host_facts, share, stand
from sweeper.clock import Clock
from sweeper.config import load_study
from sweeper.errors import FailureClass, UserError
from sweeper.records import Purpose, Trial, TrialState
from sweeper.serving import detect
from sweeper.store import Store
from tests.sweeping import servers_of

#: Another run of these tests on this machine has servers of its own.
STUDY = f"side-{os.getpid()}"
SPACE = """\
study: {study}
engine:
  kind: simulated
  model: /models/target
  gpus: 1
  flags: {{speculative-algorithm: EAGLE3, speculative-draft-model-path: /models/draft}}
  simulation: {{calibration: small-1gpu, time_scale: 20, start_s: 20, fault: "{fault}"}}
parameters:
  steps: {{flag: speculative-num-steps, values: [1, 2, 3]}}
  topk: {{flag: speculative-eagle-topk, values: [1]}}
  draft_tokens: {{flag: speculative-num-draft-tokens, values: [8], when: topk > 1, otherwise: steps + 1}}
known:
  - {{steps: 3, topk: 1}}
  - {{steps: 1, topk: 1}}
workloads: [{{name: single, max_tokens: 40}}]
objectives: [{{maximize: output_tok_s}}]
budget: {{launches: 3}}
"""

pytestmark = pytest.mark.slow


def test_servers_of_fewer_gpus_than_there_are_take_them_in_turn() -> None:
    assert [share((0, 1, 2, 3, 4), 2, n) for n in range(3)] == [(0, 1), (2, 3), (0, 1)]
    assert share((4, 6), 2, 7) == (4, 6)
    assert share((), 8, 1) == share((0, 1), 0, 1) == ()
    with pytest.raises(UserError, match="takes 8 GPUs, and there are 2"):
        share((0, 1), 8, 0)


def space(folder: Path, fault: str = "") -> str:
    path = folder / "side.yaml"
    path.write_text(SPACE.format(study=STUDY, fault=fault), encoding="utf-8")
    return str(path)


def test_each_setting_is_measured_in_every_round(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    words = [space(tmp_path), "--runs", str(runs), "--seconds", "300", "--rounds", "2"]
    assert main([*words, "--flag", "max-total-tokens=60000"]) == 0
    records = Store(runs / f"{STUDY}-side").records(requests=True)
    assert [r.trial.number for r in records] == list(range(6))
    assert [r.trial.point.get("steps") for r in records] == [None, 3, 1] * 2
    assert all(record.state is TrialState.COMPLETE for record in records)
    assert all(record.requests for record in records)
    assert servers_of(STUDY) == []


def test_each_round_may_have_servers_of_its_own(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    words = [space(tmp_path), "--runs", str(runs), "--seconds", "300", "--rounds", "2"]
    assert main([*words, "--restart"]) == 0
    records = Store(runs / f"{STUDY}-side").records()
    assert [r.trial.point.get("steps") for r in records] == [None, 3, 1] * 2
    assert [r.log for r in records] == [f"logs/{n:06d}.log" for n in range(6)]
    logs = [runs / f"{STUDY}-side" / str(record.log) for record in records]
    assert all("SIMULATED SERVER" in log.read_text(encoding="utf-8") for log in logs)
    assert servers_of(STUDY) == []


def test_a_variable_is_for_every_server(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    words = [space(tmp_path), "--runs", str(runs), "--seconds", "300"]
    # Variables of the simulated server are as good as any other's.
    assert main([*words, "--env", "SWEEPER_SIM_FAULT=oom_graph"]) == 1
    records = Store(runs / f"{STUDY}-side").records()
    assert len(records) == 3
    assert all(record.failure is not None for record in records)


def test_a_variable_without_a_value_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        main([space(tmp_path), "--seconds", "1", "--env", "NAME"])
    assert error.value.code == 2
    assert "'NAME' is not NAME=VALUE" in capsys.readouterr().err


def test_batches_go_on_where_they_were_until_all_settings_have_a_row(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    words = [space(tmp_path), "--runs", str(runs), "--all", "--at-once", "3"]
    assert main([*words, "--seconds", "0.1"]) == 0  # the first measurement is always made
    store = Store(runs / f"{STUDY}-side")
    assert [r.trial.point.get("steps") for r in store.records()] == [None]
    assert main([*words, "--seconds", "300"]) == 0
    records = store.records()
    assert [r.trial.point.get("steps") for r in records] == [None, None, 3, 1, None, 2]
    assert [r.trial.number for r in records] == list(range(6))
    assert len({r.log for r in records}) == 6
    assert main([*words, "--seconds", "300"]) == 0  # nothing is left to do
    assert len(store.records()) == 6


def test_a_server_that_hangs_is_left_out_and_its_stacks_are_kept(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    # The first two requests are the probe's and the warm-up's.
    asked = space(tmp_path, "hang_serving=3@speculative-num-steps==3")
    assert main([asked, "--runs", str(runs), "--seconds", "300", "--rounds", "2"]) == 1
    records = Store(runs / f"{STUDY}-side").records()
    failed = [record for record in records if record.failure is not None]
    assert [record.trial.point["steps"] for record in failed] == [3]
    assert [r.failure.kind for r in failed if r.failure] == [FailureClass.HANG]
    assert {r.trial.point.get("steps") for r in records if not r.failure} == {None, 1}
    assert "Thread" in (runs / f"{STUDY}-side" / "logs" / "000001.stacks").read_text()
    assert servers_of(STUDY) == []


def test_a_server_that_hangs_is_gone_before_the_next_one_is_measured(tmp_path: Path) -> None:
    asked = load_study(Path(space(tmp_path, "hang_serving=3@speculative-num-steps==3")))
    study = asked.resolved(gpus_present=False)
    left: list[tuple[str, int]] = []
    extent = Extent(everything=False, at_once=3, rounds=1, restart=False, seconds=300)

    def say(line: str) -> None:
        left.append((line, len(servers_of(STUDY))))

    assert run(study, tmp_path / "runs", extent, flags={}, env={}, say=say) == 1
    (_, before), (line, after), _ = left
    assert ": hang: " in line
    assert after < before


def test_a_fault_of_the_machine_is_tried_again_by_the_next_command(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    words = [space(tmp_path), "--runs", str(runs), "--seconds", "300"]
    fault = "SWEEPER_SIM_FAULT=port_conflict@speculative-num-steps==3"
    assert main([*words, "--env", fault]) == 1
    assert main(words) == 0
    records = Store(runs / f"{STUDY}-side").records()
    known = [r for r in records if r.trial.purpose is Purpose.KNOWN]
    assert [r.trial.point["steps"] for r in known] == [3, 1, 3]
    kinds = [r.failure.kind if r.failure else None for r in known]
    assert kinds == [FailureClass.PORT_CONFLICT, None, None]


def test_a_server_that_dies_after_its_measurement_loses_its_counters_only(tmp_path: Path) -> None:
    study = load_study(Path(space(tmp_path))).resolved(gpus_present=False)
    gpus, clock = detect(), Clock(study.engine.simulation.time_scale)
    scene = Scene(
        study=study,
        folder=tmp_path / "runs",
        flags={},
        env={},
        clock=clock,
        gpus=gpus,
        host=host_facts(gpus, sharing=1),
    )
    launch = study.baseline_launch()
    server = stand(
        scene,
        Trial(study=study.name, number=0, purpose=Purpose.BASELINE, point={}, launch=launch),
    ).server
    assert server is not None
    with server:
        os.kill(server.pid, signal.SIGKILL)
        assert counters(server, study) == {}
