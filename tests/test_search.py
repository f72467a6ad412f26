"""The main command as a process: real servers, real HTTP, real files, real signals."""

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeper.config import parse_study
from sweeper.errors import UserError
from sweeper.judging.verdict import judge
from sweeper.records import Purpose, TrialState
from sweeper.store import Store
from sweeper.terminal.options import parse_options, study_of
from tests.cluster.stages import GONE_S, Countdown

TINY = """\
study: tiny
engine:
  model: /models/größe
  gpus: 8
  flags:
    tp-size: 8
    max-running-requests: 48
    cuda-graph-max-bs-decode: 4
    speculative-algorithm: EAGLE3
    speculative-draft-model-path: /models/eagle3 kimi
    speculative-eagle-topk: 1
  simulation: {calibration: kimi-k2.5-later, time_scale: 25, start_s: 5, noise: 0.2}
baseline: {drop: [speculative-*], reference_tok_s: 90}
parameters:
  steps: {flag: speculative-num-steps, values: [2, 4]}
  draft_tokens: {flag: speculative-num-draft-tokens, values: [9], when: steps > 9, otherwise: steps + 1}
  nccl:
    choices:
      default: {}
      ring-ll: {env: {NCCL_ALGO: Ring, NCCL_PROTO: LL}}
known: [{steps: 4}]
workloads: [{name: single, max_tokens: 120, warmup: 0}]
objectives: [{maximize: output_tok_s}]
budget: {launches: 6}
"""
ALL_SETTINGS = 5


def command(space: Path | str, *more: str, executor: str = "inline") -> list[str]:
    words = [sys.executable, "-m", "sweeper.search", str(space)]
    return [*words, "--executor", executor, *more]


def run(
    folder: Path, space: Path | str, *more: str, executor: str = "inline"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(space, *more, executor=executor),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def servers(study: str = "tiny") -> list[int]:
    """Return the pids of all living processes that carry the study's mark."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                marked = (
                    f"SWEEPER_MARK=sweeper/{study}/".encode() in (folder / "environ").read_bytes()
                )
                alive = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
            except OSError:
                continue
            if marked and alive:
                found.append(int(folder.name))
    return found


def wait_for(condition, what: str, timeout_s: float = 60.0) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"waited {timeout_s} s for {what}"
        time.sleep(0.02)


def wait_gone() -> None:
    """Wait until no server is left, for the two seconds that are promised."""
    countdown = Countdown(GONE_S)
    while servers():
        assert not countdown.is_over(), "a server is still there"
        time.sleep(0.02)


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "tiny räume.yaml"
    path.write_text(TINY, encoding="utf-8")
    yield path
    for pid in servers():
        os.kill(pid, signal.SIGKILL)


def stored(folder: Path, name: str = "tiny") -> Store:
    return Store(folder / "runs" / name)


def check_whole(store: Store) -> None:
    """All settings measured once, the winner right, all files there."""
    records = store.records()
    assert not store.problems
    complete = Counter(r.trial.launch.key for r in records if r.state is TrialState.COMPLETE)
    assert len(complete) == ALL_SETTINGS
    assert set(complete.values()) == {1}
    study = parse_study(store.study_text(), "study.yaml").resolved(gpus_present=False)
    verdict = judge(records, study)
    assert verdict.winner is not None
    assert verdict.winner.records[0].trial.point == {
        "steps": 2,
        "draft_tokens": 3,
        "nccl": "ring-ll",
    }
    for name in ("study.yaml", "report.html", "best.sh"):
        assert (store.folder / name).stat().st_size > 0
    assert os.access(store.folder / "best.sh", os.X_OK)
    assert not servers()


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "ray"])
def test_a_sweep_goes_from_the_space_file_to_the_command(
    tmp_path: Path, space: Path, executor: str
) -> None:
    done = run(tmp_path, space, executor=executor)
    assert done.returncode == 0, done.stderr
    assert "SIMULATED" in done.stdout
    assert "all 4 settings launched" in done.stdout
    store = stored(tmp_path)
    check_whole(store)
    records = store.records(requests=True)
    assert records[0].trial.purpose is Purpose.BASELINE
    assert records[1].trial.purpose is Purpose.KNOWN
    for record in records:
        assert record.trial.launch.simulated
        assert record.server is not None
        assert record.server.simulated
        assert record.server.time_scale == 25.0
        assert record.host is not None
        assert len(record.requests) == 5
        assert {"start", "measure", "stop"} <= record.phases_s.keys()
        assert record.log is not None
        log = (store.folder / record.log).read_text(encoding="utf-8")
        assert "The server is fired up and ready to roll!" in log
    again = run(tmp_path, space, executor="inline")
    assert again.returncode == 0
    assert "going on with 5 finished trials" in again.stdout
    assert len(store.records()) == len(records)


def test_gpus_that_cannot_be_seen_are_not_taken_for_none(space: Path) -> None:
    options = parse_options([str(space)])
    with pytest.raises(UserError, match=r"cannot be seen: no driver.*kind: sglang"):
        study_of(options, gpus_here=False, unseen="no driver")
    assert study_of(options, gpus_here=False).simulated
    text = TINY.replace("engine:\n", "engine:\n  kind: simulated\n")
    space.write_text(text, encoding="utf-8")
    assert study_of(options, gpus_here=False, unseen="no driver").simulated


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "ray"])
def test_a_killed_driver_leaves_no_server_and_the_same_command_ends_the_sweep(
    tmp_path: Path, space: Path, executor: str
) -> None:
    def kill_when(ready) -> None:  # type: ignore[no-untyped-def]
        with subprocess.Popen(
            command(space, executor=executor), cwd=tmp_path, stdout=subprocess.DEVNULL
        ) as driver:
            try:
                wait_for(ready, "the moment to kill")
            finally:
                driver.send_signal(signal.SIGKILL)
            driver.wait()
            wait_gone()

    trials = tmp_path / "runs" / "tiny" / "trials"

    def count() -> int:
        return len(list(trials.glob("[0-9]*.parquet")))

    kill_when(servers)  # while the first server starts
    kill_when(lambda: count() >= 1 and servers())  # while the second one does
    measuring = re.compile(r"Prefill batch.*\n(?:.*\n)*.*Prefill batch")

    def is_measuring() -> bool:
        logs = sorted((tmp_path / "runs" / "tiny" / "logs").glob("*.log"))
        return (
            count() >= 2
            and bool(servers())
            and bool(measuring.search(logs[-1].read_text(errors="replace")))
        )

    kill_when(is_measuring)
    done = run(tmp_path, space, executor=executor)
    assert done.returncode == 0, done.stderr
    check_whole(stored(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_stops_cleanly_and_says_how_to_go_on(
    tmp_path: Path, space: Path, number: signal.Signals, status: int
) -> None:
    with subprocess.Popen(
        command(space, "--fresh"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as driver:
        trials = tmp_path / "runs" / "tiny" / "trials"
        wait_for(lambda: list(trials.glob("[0-9]*.parquet")) and servers(), "the second server")
        driver.send_signal(number)
        out, _ = driver.communicate(timeout=60)
    assert driver.returncode == status, out
    said = next(line for line in out.splitlines() if line.startswith("to go on: "))
    assert shlex.split(said.removeprefix("to go on: ")) == ["python", *command(space)[1:]]
    assert "Traceback" not in out
    assert not servers()
    assert 1 <= len(stored(tmp_path).records()) < ALL_SETTINGS
    assert run(tmp_path, space).returncode == 0
    check_whole(stored(tmp_path))


@pytest.mark.slow
def test_a_second_signal_stops_at_once_and_leaves_no_server(tmp_path: Path, space: Path) -> None:
    with subprocess.Popen(
        command(space), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as driver:
        wait_for(servers, "the first server")
        driver.send_signal(signal.SIGINT)
        driver.send_signal(signal.SIGINT)
        out, _ = driver.communicate(timeout=60)
    assert driver.returncode == 130, out
    wait_gone()


@pytest.mark.slow
def test_a_second_driver_on_the_same_study_is_refused(tmp_path: Path, space: Path) -> None:
    with subprocess.Popen(command(space), cwd=tmp_path, stdout=subprocess.DEVNULL) as driver:
        try:
            wait_for(servers, "the first server")
            second = run(tmp_path, space)
        finally:
            driver.send_signal(signal.SIGKILL)
    assert second.returncode == 2
    assert f"another driver (process {driver.pid}) is at work" in second.stderr
    assert "Traceback" not in second.stderr


@pytest.mark.slow
def test_fresh_starts_beside_the_old_and_a_changed_space_keeps_what_fits(
    tmp_path: Path, space: Path
) -> None:
    assert run(tmp_path, space, "--launches", "2").returncode == 0
    assert run(tmp_path, space, "--launches", "1", "--fresh").returncode == 0
    assert len(stored(tmp_path).records()) == 2
    assert len(stored(tmp_path, "tiny.2").records()) == 1
    space.write_text(TINY.replace("values: [2, 4]", "values: [2, 4, 5]"), encoding="utf-8")
    more = run(tmp_path, space, "--launches", "2")
    assert more.returncode == 0
    assert "going on with 1 finished trials" in more.stdout
    assert len(stored(tmp_path, "tiny.2").records()) == 2
    space.write_text(TINY.replace("max_tokens: 120", "max_tokens: 60"), encoding="utf-8")
    changed = run(tmp_path, space, "--launches", "1")
    assert "2 of the stored trials left out: other workloads" in changed.stdout
    assert len(stored(tmp_path, "tiny.2").records()) == 3


@pytest.mark.slow
def test_failing_settings_are_recorded_and_not_launched_again(tmp_path: Path, space: Path) -> None:
    fault = "noise: 0.2, fault: oom_graph@speculative-num-steps>=4"
    space.write_text(TINY.replace("noise: 0.2", fault), encoding="utf-8")
    done = run(tmp_path, space)
    assert done.returncode == 0, done.stderr
    records = stored(tmp_path).records()
    failed = [r for r in records if r.failure is not None]
    assert {(str(r.state), str(r.failure)[:21]) for r in failed} == {
        ("infeasible", "oom at graph_capture:")
    }
    assert len({r.trial.launch.key for r in records}) == len(records)
    assert run(tmp_path, space).returncode == 0
    assert len(stored(tmp_path).records()) == len(records)


@pytest.mark.slow
def test_what_a_failure_teaches_is_said_kept_to_and_written_in_the_report(
    tmp_path: Path, space: Path
) -> None:
    fault = "noise: 0.2, fault: draft_incompatible"
    space.write_text(TINY.replace("noise: 0.2", fault), encoding="utf-8")
    done = run(tmp_path, space)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("no longer launched:") == 1
    states = [str(r.state) for r in stored(tmp_path).records()]
    assert states == ["complete", "infeasible"]
    page = (stored(tmp_path).folder / "report.html").read_text(encoding="utf-8")
    assert "learned: " in page


@pytest.mark.slow
def test_a_broken_installation_stops_the_sweep_with_its_cause(tmp_path: Path, space: Path) -> None:
    space.write_text(TINY.replace("noise: 0.2", "noise: 0, fault: build_missing"), "utf-8")
    done = run(tmp_path, space)
    assert done.returncode == 1
    assert "2 launches ended with build_missing" in done.stderr
    assert "remedy: " in done.stderr
    assert "Traceback" not in done.stderr
    assert len(stored(tmp_path).records()) == 2


def test_a_plan_says_what_would_be_done_and_starts_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "eagle3", "--plan")
    assert done.returncode == 0, done.stderr
    assert "2960 distinct settings" in done.stdout
    assert "2040  constraint: steps < draft_tokens <= 1 + topk" in done.stdout
    assert "hours of engine time for" in done.stdout
    assert "until a setting within 1 % of the best was launched" in done.stdout
    assert "SIMULATED" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.yaml"], "there is no space file nowhere.yaml"),
        (["eagle3", "--launches", "0"], "--launches must be at least 1"),
        (["eagle3", "--seed", "-1"], "--seed must be at least 0"),
        (["eagle3", "--runs", "/proc/nothing"], "cannot write to"),
        (["."], "is a folder"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_and_status_two(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = run(tmp_path, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "{name: single,",
            "{name: single, prompts: fiev,",
            "workload 'single': no prompt set or file 'fiev'",
        ),
        (
            "{name: single,",
            "{name: single, arrivals: gone,",
            "workload 'single': cannot read arrivals from 'gone'",
        ),
        ("kimi-k2.5-later", "kimi", "'kimi' is none of kimi-k2.5-later"),
        ("noise: 0.2", "noise: 0.2, fault: oom_grph", "'oom_grph' names none of"),
    ],
)
def test_what_a_server_or_client_would_stumble_over_is_told_before_the_first_start(
    tmp_path: Path, space: Path, old: str, new: str, message: str
) -> None:
    assert old in TINY
    space.write_text(TINY.replace(old, new), encoding="utf-8")
    for more in ([], ["--plan"]):
        done = run(tmp_path, space, *more)
        assert done.returncode == 2
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_a_space_with_nothing_feasible_is_one_line_and_status_two(
    tmp_path: Path, space: Path
) -> None:
    text = TINY.replace("known: [{steps: 4}]", "constraints: [steps > 4]")
    space.write_text(text, encoding="utf-8")
    done = run(tmp_path, space)
    assert done.returncode == 2
    assert "because: constraint: steps > 4" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_on_a_terminal_the_live_view_shows_progress_and_is_taken_away(
    tmp_path: Path, space: Path
) -> None:
    space.write_text(TINY.replace("time_scale: 25", "time_scale: 5"), encoding="utf-8")
    leader, follower = pty.openpty()
    with subprocess.Popen(
        command(space, "--launches", "2"),
        cwd=tmp_path,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"},
    ) as driver:
        os.close(follower)
        shown = b""
        while True:
            try:
                data = os.read(leader, 65536)
            except OSError:
                break
            if not data:
                break
            shown += data
        driver.wait(timeout=60)
    os.close(leader)
    text = shown.decode("utf-8", "replace")
    assert driver.returncode == 0, text
    assert "1 of 2 launches" in text
    assert "prompt " in text
    assert "SIMULATED: no GPU, no SGLang" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")
