"""Sweeps on clusters of many raylets with fake GPUs: parallel, shared, unlike, dying, joining."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeper.planning.strata import hardware_of, on_hardware
from sweeper.records import Purpose, TrialRecord, TrialState
from sweeper.store import Store
from tests.cluster.raylets import ENVIRONMENT, Raylets, raylets
from tests.cluster.running import PATIENCE_S, RunningSweep, running_sweep
from tests.sweeping import servers_of, wait_for

pytestmark = pytest.mark.slow
#: Trials that take little time: their servers' start and end is nearly all.
SHORT = {"scale": 1000, "tokens": 20, "repeats": 1}


@pytest.fixture
def cluster() -> Iterator[Raylets]:
    with raylets() as running:
        yield running


@pytest.fixture(scope="module")
def pair() -> Iterator[Raylets]:
    """Two nodes that no test may harm."""
    with raylets() as running:
        running.add(8)
        running.add(8)
        yield running


def store_of(sweep: RunningSweep) -> Store:
    return Store(sweep.folder / "runs" / sweep.study)


def finish(sweep: RunningSweep, limit_s: float = PATIENCE_S) -> list[TrialRecord]:
    """Wait for the driver's end, and return its records, of which none may be lost or doubled."""
    assert sweep.process.wait(timeout=limit_s) == 0, "".join(sweep.lines)
    wait_for(lambda: not servers_of(sweep.study), "the servers to be gone", 10.0)
    store = store_of(sweep)
    records = store.records()
    assert store.problems == []
    assert [r.trial.number for r in records] == list(range(len(records)))
    measured = Counter(
        (hardware_of(r), r.trial.launch.key)
        for r in records
        if r.state is TrialState.COMPLETE and r.trial.point
    )
    assert not measured or max(measured.values()) == 1
    # A machine's fault is tried again, so each setting that was begun is measured in the end.
    begun = {(hardware_of(r), r.trial.launch.key) for r in records if r.trial.point}
    assert begun == measured.keys()
    return records


def check_disjoint(records: list[TrialRecord]) -> None:
    """No GPU of a node belongs to two slots."""
    owners: dict[tuple[str | None, int], str] = {}
    for record in records:
        if record.host is not None:
            for gpu in record.host.gpu_ids:
                owner = owners.setdefault((record.host.ray_node_id, gpu), record.host.slot)
                assert owner == record.host.slot


def nodes_of(records: list[TrialRecord]) -> Counter[str | None]:
    return Counter(r.host.ray_node_id for r in records if r.host is not None)


def test_nodes_that_die_and_join_lose_no_row(cluster: Raylets, tmp_path: Path) -> None:
    first = cluster.add(8)
    cluster.add(8)
    with running_sweep(
        tmp_path, "nodes", "--address", cluster.address, env=ENVIRONMENT, launches=16, **SHORT
    ) as sweep:
        sweep.until(r"^\[2/16\b")
        cluster.kill(first)
        cluster.add(8)
        records = finish(sweep)
    assert sum(r.launched for r in records) == 16
    assert len(nodes_of(records)) == 3
    check_disjoint(records)
    assert records[0].trial.purpose is Purpose.BASELINE
    assert re.search(r"the slots had a trial \d+\.\d% of the time", "".join(sweep.lines))


def devices_of(study: str) -> set[str]:
    """Return what a study's servers are told of GPUs."""
    found = set()
    for pid in servers_of(study):
        with contextlib.suppress(OSError):
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            found |= {
                entry.partition(b"=")[2].decode()
                for entry in entries
                if entry.startswith(b"CUDA_VISIBLE_DEVICES=")
            }
    return found


def test_two_servers_share_a_node_with_gpus_of_their_own(pair: Raylets, tmp_path: Path) -> None:
    override = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
    with running_sweep(
        tmp_path,
        "halves",
        "--address",
        pair.address,
        # Whatever the driver sees, and whichever way Ray treats workers, a server sees its own.
        env={**ENVIRONMENT, "CUDA_VISIBLE_DEVICES": "3", override: "1"},
        launches=6,
        gpus=4,
        slots_per_node=2,
        **SHORT,
    ) as sweep:
        shown: set[str] = set()

        def looked() -> bool:
            shown.update(devices_of("halves"))
            return bool(shown)

        wait_for(looked, "a server", PATIENCE_S)
        records = finish(sweep)
    assert shown <= {"0,1,2,3", "4,5,6,7"}
    hosts = [r.host for r in records if r.host is not None]
    assert {host.slot for host in hosts} == {"slot-0", "slot-1", "slot-2", "slot-3"}
    assert len({host.ray_node_id for host in hosts}) == 2
    assert {host.sharing for host in hosts} == {2}
    assert all(len(host.gpu_ids) == 4 for host in hosts)
    check_disjoint(records)
    assert {gpu for host in hosts for gpu in host.gpu_ids} == set(range(8))


def test_one_server_runs_on_two_nodes_and_both_ranks_leave(pair: Raylets, tmp_path: Path) -> None:
    with running_sweep(
        tmp_path,
        "wide",
        "--address",
        pair.address,
        env=ENVIRONMENT,
        launches=2,
        gpus=16,
        nodes=2,
        **SHORT,
    ) as sweep:
        records = finish(sweep)
    for record in records:
        assert record.state is TrialState.COMPLETE
        assert record.host is not None
        assert len(record.host.other_hosts) == 1
        assert record.log is not None
        log = store_of(sweep).folder / record.log
        leader, other = log.read_text("utf-8"), log.with_suffix(".rank1.log").read_text("utf-8")
        (meeting,) = set(re.findall(r"'dist_init_addr': '([\d.]+:\d+)'", leader + other))
        assert meeting
        assert "'nnodes': 2, 'node_rank': 0" in leader
        assert "'nnodes': 2, 'node_rank': 1" in other
        assert "dist-init-addr" not in record.trial.launch.flags
    assert len({r.trial.launch.key for r in records}) == 2


def test_a_rank_that_dies_takes_the_whole_server_with_it(pair: Raylets, tmp_path: Path) -> None:
    with running_sweep(
        tmp_path,
        "torn",
        "--address",
        pair.address,
        env=ENVIRONMENT,
        launches=2,
        gpus=16,
        nodes=2,
        scale=4,
        tokens=2000,
        repeats=1,
    ) as sweep:
        killed: list[int] = []

        def kill_rank() -> bool:
            for pid in servers_of("torn"):
                try:
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if b"--node-rank" in words and words[words.index(b"--node-rank") + 1] == b"1":
                    killed.append(pid)
                    subprocess.run(["kill", "-KILL", str(pid)], check=True)
                    return True
            return False

        wait_for(kill_rank, "the second rank", PATIENCE_S)
        wait_for(lambda: len(store_of(sweep).records()) >= 1, "its row", PATIENCE_S)
    (record, *_) = store_of(sweep).records()
    assert record.state is TrialState.FAILED
    assert record.failure is not None
    assert record.failure.line.startswith("rank 1: ")
    wait_for(lambda: not servers_of("torn"), "all ranks to be gone", 10.0)


def test_what_was_measured_outlives_the_owner_of_another_rank(
    pair: Raylets, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster.torn", pair.address, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second, third = json.loads(done.stdout.splitlines()[-1])
    assert (first[0], first[2]) == (TrialState.COMPLETE, 1)
    assert "after the server's end" in first[1]
    # Its slot is not whole: that costs one trial, and then it is.
    assert second[0] == "lost"
    assert third == [TrialState.COMPLETE, None, 1]


def test_unlike_hardware_is_searched_and_judged_by_itself(
    cluster: Raylets, tmp_path: Path
) -> None:
    for kind in ("H200", "A100", "H200"):
        cluster.add(8, kind)
    more = ("--address", cluster.address)
    with running_sweep(tmp_path, "kinds", *more, env=ENVIRONMENT, launches=9, **SHORT) as sweep:
        records = finish(sweep)
    said = "".join(sweep.lines)
    assert "launches: 6 on 2 x simulated H200, 3 on 1 x simulated A100" in said
    by_kind = {k: on_hardware(records, k) for k in ("simulated H200", "simulated A100")}
    for kind, own in by_kind.items():
        assert Purpose.BASELINE in {r.trial.purpose for r in own}, kind
        assert f"On {kind}:" in said
    assert {k: sum(r.launched for r in own) for k, own in by_kind.items()} == {
        "simulated H200": 6,
        "simulated A100": 3,
    }
    folder = store_of(sweep).folder
    for name in ("best.sh", "best-simulated-a100.sh", "report.html", "report-simulated-a100.html"):
        assert (folder / name).is_file(), name
    # Going on with one kind: the other's rows stay, and are told to nobody.
    one = ("--hardware", "a100")
    with running_sweep(
        tmp_path, "kinds", *more, *one, env=ENVIRONMENT, launches=5, **SHORT
    ) as sweep:
        records = finish(sweep)
    said = "".join(sweep.lines)
    assert "is not used: it has simulated H200, and a100 is asked for" in said
    assert "6 of the stored trials left out: measured on other hardware" in said
    assert Counter(map(hardware_of, records)) == {"simulated H200": 6, "simulated A100": 5}


def test_what_no_node_can_hold_is_refused_at_once_with_what_there_is(
    pair: Raylets, tmp_path: Path
) -> None:
    more = ("--address", pair.address)
    with running_sweep(tmp_path, "large", *more, env=ENVIRONMENT, gpus=16, **SHORT) as sweep:
        begun = time.monotonic()
        assert sweep.process.wait(timeout=PATIENCE_S) == 2
        assert time.monotonic() - begun < 60.0
    said = "".join(sweep.lines)
    assert "a server needs 16 GPUs on one node; the nodes of the cluster have: 8, 8, 0" in said


def test_the_head_lost_ends_the_driver_and_the_same_command_goes_on(tmp_path: Path) -> None:
    # Ray's patience with a head that is gone is a minute.
    env = {**ENVIRONMENT, "RAY_gcs_rpc_server_reconnect_timeout_s": "2"}
    with raylets() as first:
        first.add(8)
        more = ("--address", first.address)
        with running_sweep(tmp_path, "headless", *more, env=env, launches=30, **SHORT) as sweep:
            sweep.until(r"^\[2/30\b")
            first.behead()
            assert sweep.process.wait(timeout=PATIENCE_S) != 0
    wait_for(lambda: not servers_of("headless"), "the servers to be gone", 10.0)
    with raylets() as second:
        second.add(8)
        more = ("--address", second.address)
        with running_sweep(
            tmp_path, "headless", *more, env=ENVIRONMENT, launches=4, **SHORT
        ) as sweep:
            records = finish(sweep)
    assert len(records) >= 4
    assert "going on with" in "".join(sweep.lines)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_eight_nodes_two_killed_one_joined_and_two_hundred_launches(
    cluster: Raylets, tmp_path: Path
) -> None:
    numbers = [cluster.add(8) for _ in range(8)]
    more = ("--address", cluster.address)
    with running_sweep(tmp_path, "many", *more, env=ENVIRONMENT, launches=200, **SHORT) as sweep:
        sweep.until(r"^\[40/200\b", 2400)
        cluster.kill(numbers[0])
        sweep.until(r"^\[80/200\b", 2400)
        cluster.kill(numbers[5])
        cluster.add(8)
        records = finish(sweep, 2400)
    assert sum(r.launched for r in records) == 200
    check_disjoint(records)
    assert len(nodes_of(records)) == 9
    share = re.search(r"the slots had a trial (\d+\.\d)% of the time", "".join(sweep.lines))
    assert share is not None
    print(f"busy {share.group(1)} %", file=sys.stderr)
