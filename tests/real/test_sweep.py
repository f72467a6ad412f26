"""The main command with released SGLang 0.5.23: a baseline and two numbers of draft tokens."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sweeper.engines.base import Ending, flag_words
from sweeper.engines.sglang import SGLang
from sweeper.errors import Stage
from sweeper.records import Purpose, TrialState
from sweeper.serving.supervisor import MARK, all_processes
from sweeper.store import Store
from tests.real.installed import CPU_FLAGS, MODEL, NGRAM_FLAGS, python

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

SPACE = """\
study: {study}
engine:
  kind: sglang
  command: [{python}, -m, sglang.launch_server]
  model: {model}
  gpus: 0
  flags: {flags}
baseline: {{drop: [speculative-*]}}
parameters:
  tokens: {{flag: speculative-num-draft-tokens, values: [2, 4]}}
workloads:
  - {{name: single, max_tokens: 80, warmup: 1}}
  - {{name: busy, max_tokens: 40, concurrency: 4, route: completions, warmup: 0}}
objectives: [{{maximize: output_tok_s, workload: single}}]
budget: {{launches: {launches}}}
limits: {{start_s: 300, silence_s: 200, progress_s: 60, probe_s: 60}}
"""


def servers_of(study: str) -> list[int]:
    wanted = f"{MARK}=sweeper/{study}/".encode()
    found = []
    for stat in all_processes():
        try:
            environ = Path(f"/proc/{stat.pid}/environ").read_bytes()
        except OSError:
            continue
        if stat.alive and wanted in environ:
            found.append(stat.pid)
    return found


def sweep(folder: Path, study: str, *, executor: str, launches: int) -> tuple[Store, str]:
    """Run a sweep; return its store and what it printed."""
    flags = {**CPU_FLAGS, **NGRAM_FLAGS}
    text = SPACE.format(
        study=study,
        python=python("0.5.23"),
        model=MODEL,
        flags=json.dumps(flags),
        launches=launches,
    )
    (folder / "space.yaml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "sweeper.search"]
    done = subprocess.run(
        ["nice", "-n", "10", *command, "space.yaml", "--executor", executor],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert servers_of(study) == []
    return Store(folder / "runs" / study), done.stdout + done.stderr


def test_a_sweep_measures_a_baseline_and_two_shapes(tmp_path: Path) -> None:
    store, said = sweep(tmp_path, "real", executor="inline", launches=3)
    assert "asking SGLang 0.5.23 about 3 settings" in said
    assert "SIMULATED" not in said
    records = store.records(requests=True)
    assert [r.state for r in records] == [TrialState.COMPLETE] * 3
    assert records[0].trial.purpose is Purpose.BASELINE
    tokens = [r.trial.launch.flags.get("speculative-num-draft-tokens") for r in records]
    assert tokens[0] is None
    assert set(tokens[1:]) == {2, 4}
    for record, asked in zip(records, tokens, strict=True):
        facts = record.server
        assert facts is not None
        assert (facts.version, facts.simulated, facts.time_scale) == ("0.5.23", False, 1.0)
        assert facts.rewritten == {}
        assert facts.max_total_tokens == 8192
        assert facts.flags.get("speculative-num-draft-tokens") == asked
        assert record.phases_s.keys() >= {"start", "start.load", "measure", "stop"}
        assert [m.workload for m in record.measurements] == ["single", "busy"]
        for measurement in record.measurements:
            assert measurement.output_tok_s is not None
            assert measurement.output_tok_s > 0
            assert measurement.chat_template == "server"
        assert record.log is not None
        log = (store.folder / record.log).read_bytes()
        check_acceptance(record.measurements[0].accept_length, record.requests, asked, log)
    html = (store.folder / "report.html").read_text(encoding="utf-8")
    assert "0.5.23" in html
    command = (store.folder / "best.sh").read_text(encoding="utf-8")
    assert python("0.5.23") in command
    assert " ".join(flag_words({"max-total-tokens": 8192})) in command


def check_acceptance(length: float | None, requests: object, asked: object, log: bytes) -> None:
    """Compare the acceptance that was measured with what the server wrote into its own log."""
    reader = SGLang().log_reader()
    reader.feed(log)
    assert reader.stage is Stage.SHUTDOWN
    assert reader.failure(Ending(exit_code=-2)) is None
    assert reader.speculating is (asked is not None)
    if asked is None:
        assert length is None
        assert reader.decode.accept_lines == 0
        return
    assert length is not None
    assert isinstance(asked, int)
    assert 1.0 <= length <= asked
    assert isinstance(requests, tuple)
    histograms = [r.accepted_histogram for r in requests if r.workload == "single"]
    steps = sum(sum(h) for h in histograms)
    drafts = sum(i * n for h in histograms for i, n in enumerate(h))
    assert length == pytest.approx((steps + drafts) / steps)
    assert max(len(h) for h in histograms) <= asked
    mean = reader.decode.accept_length_mean
    assert mean is not None
    assert 1.0 <= mean <= asked


@pytest.mark.long
def test_a_sweep_runs_on_ray_too(tmp_path: Path) -> None:
    store, said = sweep(tmp_path, "real-ray", executor="ray", launches=2)
    assert "Ray dashboard:" in said
    records = store.records()
    assert [r.state for r in records] == [TrialState.COMPLETE] * 2
    assert all(r.server is not None and r.server.version == "0.5.23" for r in records)
