"""The client as a process: its life, its death, and its command line."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sweeper.bench.client import stay_aside
from sweeper.bench.jobs import (
    Job,
    Window,
    job_from_json,
    job_to_json,
    window_from_json,
    window_to_json,
)
from sweeper.bench.process import ClientProcess
from sweeper.bench.streams import StreamFault
from sweeper.bench.workload import Prompt
from sweeper.errors import BenchFailed, FailureClass
from sweeper.records import RequestTiming
from tests.bench.servers import PlainServer, ServerThatHangs, event, serving

PROMPTS = (Prompt(id="a", text="A"), Prompt(id="b", messages=({"role": "user", "content": "B"},)))


def gone(pid: int) -> bool:
    """Tell whether a process ends within ten seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def job(url: str) -> Job:
    """Return a short job."""
    return Job(url=url, model="m", workload="w", prompts=PROMPTS, max_tokens=3, flush="no")


def test_jobs_and_windows_survive_their_way_through_json() -> None:
    sent = dataclasses.replace(job("http://h"), api_key="k", duration_s=2.5)
    assert job_from_json(json.loads(json.dumps(job_to_json(sent)))) == sent
    assert "api_key" not in repr(sent)
    timing = RequestTiming(
        workload="w",
        repeat=1,
        prompt_id="a",
        prompt_kind="chat",
        sent_ns=5,
        chunk_ns=(6, 7),
        accepted_histogram=(1, 2),
        text="ü",
    )
    bare = RequestTiming(workload="w", repeat=1, prompt_id="b", prompt_kind="chat", sent_ns=5)
    window = Window(timings=(timing, bare), faults=(None, StreamFault.STALLED), drafted_tokens=3)
    assert window_from_json(json.loads(json.dumps(window_to_json(window)))) == window


def test_a_client_runs_one_job_after_another_and_is_gone_after_close() -> None:
    with serving(PlainServer()) as url, ClientProcess.start() as client:
        pid = client.pid
        assert pid is not None
        for _ in range(2):
            assert len(client.run(job(url)).timings) == 2
        assert client.pid == pid
    assert gone(pid)
    client.close()


def test_a_client_that_is_killed_fails_the_job_and_is_replaced() -> None:
    with serving(ServerThatHangs()) as url, ClientProcess.start() as client:
        first = client.pid
        assert first is not None
        begun = time.monotonic()

        def check() -> None:
            if time.monotonic() - begun > 0.5 and client.pid == first:
                os.kill(first, signal.SIGKILL)

        with pytest.raises(BenchFailed, match="ended with status -9") as caught:
            client.run(job(url), check=check)
        assert caught.value.failure.kind is FailureClass.CLIENT_LIMIT
    with serving(PlainServer()) as url, client:
        assert client.pid != first
        assert len(client.run(job(url)).timings) == 2


OWNER = """
import sys, time
from sweeper.bench.jobs import Job
from sweeper.bench.process import ClientProcess
from sweeper.bench.workload import Prompt
client = ClientProcess.start()
print(client.pid, flush=True)
client.run(Job(url=sys.argv[1], model="m", workload="w", prompts=(Prompt(id="a", text="A"),), flush="no"))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_client_does_not_outlive_its_owner(how: signal.Signals) -> None:
    server = ServerThatHangs()
    with serving(server) as url:
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, url],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert owner.stdout is not None
        with owner.stdout as lines:
            pid = int(lines.readline())
        deadline = time.monotonic() + 30
        while not server.open_streams and time.monotonic() < deadline:
            time.sleep(0.02)
        assert server.open_streams == 1
        owner.send_signal(how)
        owner.wait(30)
        assert gone(pid)


def test_clients_of_one_machine_take_different_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: taken.append(cores))
    for slot in range(4):
        stay_aside(slot)
    assert taken == [{3}, {2}, {1}, {3}]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    stay_aside(0)
    assert len(taken) == 4


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m sweeper.bench`."""
    return subprocess.run(
        [sys.executable, "-m", "sweeper.bench", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command_line_measures_a_running_server() -> None:
    with serving(PlainServer()) as url:
        words = (url, "--max-tokens", "4", "--repeats", "1", "--concurrency", "5")
        table = bench(*words)
        asked_json = bench(*words, "--json", "--requests")
    assert table.returncode == 0, table.stderr
    assert "plain-model" in table.stdout
    assert "output_tok_s" in table.stdout
    measured = json.loads(asked_json.stdout)
    assert (measured["output_tokens"], measured["failed_requests"]) == (20, 0)
    assert len(measured["all_requests"]) == 5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["http://127.0.0.1:9"], "no model server answers"),
        (["127.0.0.1:9", "--workload", "bsy"], "there are single, busy"),
        (["127.0.0.1:9", "--concurrency", "2", "--request-rate", "1"], "not several"),
        (["127.0.0.1:9", "--repeats", "0"], "--repeats must be more than 0"),
        (["127.0.0.1:9", "--route", "x"], "--route"),
    ],
)
def test_a_mistake_on_the_command_line_is_told_without_a_traceback(
    words: list[str], says: str
) -> None:
    ended = bench(*words)
    assert ended.returncode == 2
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not ended.stdout


class ServerThatSaysItIsSimulated(PlainServer):
    """Tells of itself what the simulated server tells, and has accepted very many drafts."""

    def pieces(self, path: str, sent: int, new: int, tokens: int, steps: int) -> list[bytes]:
        """Return what is sent after one step."""
        meta: dict[str, Any] = {"prompt_tokens": 9, "completion_tokens": sent}
        if sent == tokens:
            told = {"spec_verify_ct": 12345, "spec_correct_drafts_histogram": [0, 12345]}
            meta |= {"finish_reason": {"type": "length"}, **told}
        return [event({"text": "w " * sent, "meta_info": meta})]

    def app(self) -> web.Application:
        """Return the routes."""
        app = super().app()
        app.router.add_get("/server_info", self.info)
        return app

    async def info(self, _: web.Request) -> web.StreamResponse:
        """Answer /server_info."""
        return web.json_response({"simulated": True, "time_scale": 10.0})


def test_a_simulated_servers_figures_say_so_and_no_count_is_rounded() -> None:
    with serving(ServerThatSaysItIsSimulated()) as url:
        words = (url, "--max-tokens", "4", "--repeats", "1", "--warmup", "0")
        table, asked_json = bench(*words), bench(*words, "--json")
    assert table.stdout.startswith("SIMULATED")
    assert "accepted_histogram      0 61725\n" in table.stdout
    assert json.loads(asked_json.stdout)["simulated"] is True


@pytest.mark.parametrize("listed", [[{"id": "m"}], {"data": None}, {"data": ["m"]}, "models"])
def test_what_is_no_list_of_models_is_told_without_a_traceback(listed: object) -> None:
    class ServerOfSomethingElse(PlainServer):
        async def models(self, request: web.Request) -> web.StreamResponse:
            return web.json_response(listed)

    with serving(ServerOfSomethingElse()) as url:
        ended = bench(url)
    assert ended.returncode == 2
    assert "names no model" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_missing_prompt_file_is_one_line(tmp_path: Path) -> None:
    with serving(PlainServer()) as url:
        ended = bench(url, "--prompts", str(tmp_path / "none.jsonl"))
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "none.jsonl" in ended.stderr
