"""What is sent to a server that one trial has started, and what its record says of it."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from sweeper.cluster import Assignment, Status
from sweeper.cluster.trial import run_trial
from sweeper.engines.sglang import SGLang
from sweeper.judging.pruning import Rival, rival_of
from sweeper.records import HostFacts, TrialRecord, TrialState, Workload
from sweeper.serving import NoGpus
from sweeper.serving.supervisor import all_processes
from tests.cluster.stages import assignment


def ran(given: Assignment) -> TrialRecord:
    return run_trial(given, SGLang(), HostFacts(host="here", slot="slot-0"), NoGpus())


def sending(folder: Path, *workloads: Workload, rival: Rival | None = None) -> Assignment:
    given = assignment("measuring", 0, folder, None)
    return replace(given, workloads=workloads, rival=rival)


@pytest.mark.parametrize("key", ["s3cret", 4711], ids=["text", "a number in YAML"])
def test_a_server_with_a_key_is_asked_and_measured_with_it(tmp_path: Path, key: str | int) -> None:
    given = sending(tmp_path, Workload(name="single", max_tokens=8, warmup=0))
    launch = given.trial.launch
    keyed = replace(launch, flags={**launch.flags, "api-key": key})
    record = ran(replace(given, trial=replace(given.trial, launch=keyed)))
    assert record.failure is None
    assert record.state is TrialState.COMPLETE


def test_the_clients_of_one_machine_keep_to_cores_of_their_own(tmp_path: Path) -> None:
    slots: set[bytes] = set()

    def look(_: Status) -> None:
        for stat in all_processes():
            words = command_of(stat.pid) if stat.parent == os.getpid() else []
            if b"sweeper.bench.client" in words:
                slots.add(words[words.index(b"--slot") + 1])

    given = sending(tmp_path, Workload(name="single", max_tokens=8, warmup=0))
    host = HostFacts(host="here", slot="slot-1", gpu_ids=(4, 5))
    run_trial(given, SGLang(), host, NoGpus(), on_status=look)
    assert slots == {b"4"}


def command_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def test_what_the_log_says_of_the_warm_up_is_left_out(tmp_path: Path) -> None:
    slow = Workload(name="rate", max_tokens=64, warmup=8, concurrency=None, request_rate=2.0)
    given = sending(tmp_path, slow)
    launch = given.trial.launch
    # The warm-up's eight streams are more than there are graphs for; one or two at a time are not.
    flags = {**launch.flags, "cuda-graph-max-bs": 6, "decode-log-interval": 1}
    record = ran(replace(given, trial=replace(given.trial, launch=replace(launch, flags=flags))))
    assert "cuda graph: False" in (tmp_path / given.log).read_text()
    assert record.measurements[0].no_graph_share == 0.0


def test_only_a_trial_of_which_something_was_left_out_is_stopped_early(tmp_path: Path) -> None:
    one = Workload(name="single", max_tokens=8, warmup=0)
    two, other = replace(one, repeats=2), replace(one, name="other")
    base = rival_of(ran(sending(tmp_path, one)).requests, "single", 0.9)
    far_faster = replace(base, speeds={key: 100 * speed for key, speed in base.speeds.items()})
    states = {
        name: (record.state, len(record.requests))
        for name, workloads in {"whole": (one,), "a pass": (two,), "a load": (one, other)}.items()
        for record in [ran(sending(tmp_path, *workloads, rival=far_faster))]
    }
    assert states == {
        "whole": (TrialState.COMPLETE, 5),
        "a pass": (TrialState.PRUNED, 5),
        "a load": (TrialState.PRUNED, 5),
    }
