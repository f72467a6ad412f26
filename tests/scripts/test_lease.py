"""`scripts/lease.py`: stopping in time, and carrying rows from one machine to another."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.lease import Lease, pack, unpack
from sweeper.errors import UserError
from sweeper.records import TrialState
from sweeper.store import Store

ROOT = Path(__file__).parents[2]
SPACE = """\
study: lent
engine:
  model: /models/target
  gpus: 1
  flags: {speculative-algorithm: EAGLE3, speculative-draft-model-path: /models/draft}
  simulation: {calibration: small-1gpu, time_scale: 20, start_s: 5, noise: 0.2}
parameters:
  steps: {flag: speculative-num-steps, values: [1, 2, 3, 4, 5, 6]}
  topk: {flag: speculative-eagle-topk, values: [1]}
  tokens: {flag: speculative-num-draft-tokens, values: [9], when: topk > 1, otherwise: steps + 1}
workloads: [{name: single, max_tokens: 100, warmup: 0}]
objectives: [{maximize: output_tok_s}]
"""


@pytest.fixture
def space(tmp_path: Path) -> Path:
    path = tmp_path / "lent.yaml"
    path.write_text(SPACE, encoding="utf-8")
    return path


def lease(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scripts.lease", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def servers() -> list[Path]:
    """Return the processes whose environment carries the study's mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"SWEEPER_MARK=sweeper/lent/" in (folder / "environ").read_bytes():
                found.append(folder)
        except OSError:
            continue
    return found


def test_a_sweep_goes_on_while_its_longest_trial_still_fits() -> None:
    lent = Lease(seconds=100, reserve_s=20)
    assert not lent.is_over([30.0, 40.0, 50.0], 50.0)
    assert not lent.is_over([], 70.0)


def test_a_sweep_stops_after_a_trial_when_another_does_not_fit() -> None:
    lent = Lease(seconds=100, reserve_s=20)
    assert lent.is_over([30.0, 40.0, 75.0], 75.0)
    assert not lent.is_over([30.0, 55.0, 75.0], 79.0)


def test_the_first_trial_counts_only_until_there_are_others() -> None:
    lent = Lease(seconds=100, reserve_s=20)
    assert lent.is_over([60.0], 60.0)
    assert not lent.is_over([60.0, 65.0], 65.0)


def test_the_reserve_is_kept_whatever_runs() -> None:
    lent = Lease(seconds=100, reserve_s=20)
    assert lent.is_over([10.0], 80.0)
    assert lent.is_over([], 80.0)


def test_a_lease_that_ends_stops_the_sweep_cleanly_and_the_next_one_goes_on(
    tmp_path: Path, space: Path
) -> None:
    runs = tmp_path / "runs"
    words = ["run", str(space), "--runs", str(runs)]
    first = lease(
        tmp_path, *words, "--seconds", "8", "--reserve", "5", "--", "--executor", "inline"
    )
    assert first.returncode in {0, 130}, first.stderr
    before = Store(runs / "lent").records()
    assert len(before) < 7
    assert servers() == []
    parts = pack([runs / "lent"], tmp_path / "carried")
    unpack(parts, tmp_path / "elsewhere")
    again = ["run", str(space), "--runs", str(tmp_path / "elsewhere"), "--seconds", "200"]
    second = lease(tmp_path, *again, "--", "--executor", "inline")
    assert second.returncode == 0, second.stderr
    after = Store(tmp_path / "elsewhere" / "lent").records()
    assert len(after) == 7
    assert [r.trial.launch.key for r in after[: len(before)]] == [
        r.trial.launch.key for r in before
    ]
    assert all(r.state is TrialState.COMPLETE for r in after)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_to_the_sweep(
    tmp_path: Path, space: Path, number: signal.Signals
) -> None:
    log = tmp_path / "out.txt"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "scripts.lease", "run", str(space)),
                *("--seconds", "200", "--", "--executor", "inline"),
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    end = time.monotonic() + 100
    while not list((tmp_path / "runs" / "lent" / "trials").glob("0*.parquet")):
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(60) == 130, log.read_text()
    assert (tmp_path / "runs" / "lent" / "best.sh").exists()
    assert servers() == []


def run_folder(runs: Path, name: str = "lent") -> Path:
    folder = runs / name
    (folder / "cache" / "triton").mkdir(parents=True)
    (folder / "cache" / "triton" / "kernel").write_bytes(b"built here")
    (folder / "logs").mkdir()
    (folder / "logs" / "000000.log").write_bytes(os.urandom(3000))
    (folder / "study.yaml").write_text(SPACE)
    (folder / "report.html").write_text("made again from the rows")
    return folder


def test_a_pack_holds_several_runs_without_what_is_rebuilt(tmp_path: Path) -> None:
    one, two = run_folder(tmp_path, "one"), run_folder(tmp_path, "two")
    parts = pack([one, two], tmp_path / "out", part_bytes=2500)
    assert len(parts) > 1
    assert max(part.stat().st_size for part in parts) <= 2500
    made = unpack(parts[::-1], tmp_path / "new")
    assert [folder.name for folder in made] == ["one", "two"]
    for folder, old in zip(made, (one, two), strict=True):
        assert (folder / "logs" / "000000.log").read_bytes() == (
            old / "logs" / "000000.log"
        ).read_bytes()
        assert sorted(path.name for path in folder.iterdir()) == ["logs", "study.yaml"]


def test_a_pack_of_too_many_parts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at most 8"):
        pack([run_folder(tmp_path)], tmp_path / "out", part_bytes=100)


def test_a_folder_that_is_no_run_costs_the_others_nothing(tmp_path: Path) -> None:
    one, other = run_folder(tmp_path), tmp_path / "empty"
    other.mkdir()
    with pytest.raises(UserError, match=r"empty, .*nowhere: no study there; all else is packed"):
        pack([other, one, tmp_path / "nowhere"], tmp_path / "out")
    (made,) = unpack(sorted((tmp_path / "out").iterdir()), tmp_path / "new")
    assert (made / "study.yaml").read_bytes() == (one / "study.yaml").read_bytes()


def test_packing_again_leaves_no_part_of_the_pack_before(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    assert len(pack([folder], tmp_path / "out", part_bytes=1500)) > 1
    assert pack([folder], tmp_path / "out") == list((tmp_path / "out").iterdir())


def test_a_missing_part_is_one_message(tmp_path: Path) -> None:
    parts = pack([run_folder(tmp_path)], tmp_path / "out", part_bytes=1500)
    with pytest.raises(UserError, match="cannot unpack"):
        unpack(parts[:-1], tmp_path / "new")


def test_unpacking_never_mixes_with_rows_that_are_there(tmp_path: Path) -> None:
    parts = pack([run_folder(tmp_path)], tmp_path / "out")
    with pytest.raises(UserError, match="there already"):
        unpack(parts, tmp_path)


def test_what_is_no_run_is_not_packed(tmp_path: Path) -> None:
    assert lease(tmp_path, "pack", str(tmp_path), "--into", "out").returncode == 2
