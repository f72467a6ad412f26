"""Servers of released SGLang in the hands of `sweeper.serving`: measured, killed, orphaned."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sweeper.bench.measure import measure
from sweeper.bench.process import ClientProcess
from sweeper.clock import Clock
from sweeper.engines.base import Ending
from sweeper.engines.sglang import SGLang
from sweeper.errors import FailureClass, ServerDied, Stage
from sweeper.records import Launch, Limits, Workload
from sweeper.serving import NoGpus, Place, Server, start
from tests.conformance.kinds import REAL, command
from tests.conformance.tree import children, wait_gone
from tests.engines.simulated_launch import free_port
from tests.real.installed import CPU_FLAGS, MODEL, python
from tests.serving.watching import marked, wait_for

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

ENGINE = SGLang()
LIMITS = Limits(start_s=400, silence_s=300, stop_s=60, memory_free_s=60, progress_s=90, probe_s=60)
OWNER = Path(__file__).parents[1] / "serving" / "owner.py"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    mark = f"real-{tmp_path.name}-{os.getpid()}"
    return Place(gpu_ids=(), log_path=tmp_path / "server.log", mark=mark)


@contextmanager
def serving(version: str, place: Place) -> Iterator[Server]:
    launch = Launch(
        engine="sglang",
        command=("nice", "-n", "10", python(version), "-m", "sglang.launch_server"),
        model=MODEL,
        gpus=0,
        flags=CPU_FLAGS,
    )
    server = start(ENGINE, launch, place=place, gpus=NoGpus(), limits=LIMITS, clock=Clock())
    try:
        yield server
    finally:
        server.stop()
        assert wait_for(lambda: not marked(place.mark)), "something of the server lives"


def test_0_5_15_is_started_measured_and_stopped(place: Place) -> None:
    with serving("0.5.15", place) as server, ClientProcess.start() as client:
        assert (server.facts.version, server.facts.simulated) == ("0.5.15", False)
        assert server.facts.rewritten == {}
        for route in ("generate", "completions", "chat"):
            measurement, requests = measure(
                client,
                url=server.url,
                model=MODEL,
                workload=Workload(name=route, max_tokens=40, repeats=1, route=route),
                gpus=0,
                clock=Clock(),
                limits=LIMITS,
                salt="real",
            )
            assert len(requests) == 5
            assert all(request.output_tokens == 40 for request in requests)
            assert measurement.output_tok_s is not None
            assert measurement.accept_length is None
        report = server.stop()
    assert report.memory_held_by == ()
    reader = ENGINE.log_reader()
    reader.feed(place.log_path.read_bytes())
    assert (reader.stage, reader.speculating) == (Stage.SHUTDOWN, False)
    assert reader.failure(Ending(exit_code=-2)) is None
    assert reader.decode.gen_tok_s is not None


def test_a_killed_scheduler_is_told_as_what_it_is(place: Place) -> None:
    with serving("0.5.23", place) as server:
        family = children(server.pid)
        victim = next(pid for pid, name in family.items() if name.startswith("sglang::schedul"))
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(ServerDied) as caught:
            wait_for(lambda: is_over(server))
    failure = caught.value.failure
    assert failure.kind is FailureClass.KILLED
    assert failure.exit_code == -9
    assert f"(pid={victim}) crashed with exit code -9" in failure.line
    assert wait_gone(set(family))


def is_over(server: Server) -> bool:
    """Return False as long as it lives; its end is raised."""
    server.check()
    time.sleep(0.1)
    return False


def test_an_owner_that_is_killed_during_the_imports_leaves_no_orphan(place: Place) -> None:
    words = command(REAL, free_port(), {})
    with subprocess.Popen(
        [sys.executable, str(OWNER), str(place.log_path), place.mark, *words],
        stdout=subprocess.PIPE,
    ) as owner:
        try:
            assert owner.stdout is not None
            found = re.search(r"pid=(\d+)", owner.stdout.readline().decode())
            assert found is not None
            leader = int(found[1])
            # Resource tracker, scheduler and detokenizer exist and do not yet ask to die with
            # their parent: unowned they would stay.
            assert wait_for(lambda: len(children(leader)) >= 3, 300)
            family = {leader, *children(leader)}
            assert b"Load weight begin" not in place.log_path.read_bytes()
        finally:
            owner.kill()
        killed_s = time.monotonic()
        assert wait_gone(family), place.log_path.read_text()[-2000:]
    # 2 s is the promise (docs/architecture.md); a busy machine may be late to look.
    assert time.monotonic() - killed_s < 20
