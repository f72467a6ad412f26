"""Ranks on one GPU: what each process of a server is told, with no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.side_by_side import todo
from sweeper.config import load_study
from tests.real.installed import CHECKOUT, python

FOLDER = CHECKOUT / "scripts" / "one_gpu"
#: A launcher that gives each word of its devices to a child, as SGLang does to its ranks.
LAUNCHER = """
import json, os, subprocess, sys
told = lambda: [os.environ["CUDA_VISIBLE_DEVICES"], os.environ.get("NCCL_HOSTID") == str(os.getpid())]
if len(sys.argv) > 1:
    print(json.dumps(told()))
    sys.exit()
own, found = told(), []
for word in own[0].split(","):
    env = os.environ | {"CUDA_VISIBLE_DEVICES": word}
    found.append(json.loads(subprocess.check_output([sys.executable, *sys.orig_argv[1:], "rank"], env=env)))
print(json.dumps([own, *found]))
"""


def told(tmp_path: Path, **env: str) -> list[list[object]]:
    program = tmp_path / "launcher.py"
    program.write_text(LAUNCHER, encoding="utf-8")
    clean = {k: v for k, v in os.environ.items() if k in {"PATH", "HOME"}}
    out = subprocess.check_output(
        [sys.executable, str(program)], env=clean | {"PYTHONPATH": str(FOLDER)} | env, timeout=60
    )
    found: list[list[object]] = json.loads(out)
    return found


@pytest.mark.parametrize("devices", ["3", "GPU-1b2c", "3,4"])
def test_all_ranks_see_the_launchers_first_gpu_as_hosts_of_their_own(
    tmp_path: Path, devices: str
) -> None:
    launcher, *ranks = told(tmp_path, ONE_GPU="1", CUDA_VISIBLE_DEVICES=devices)
    first = devices.split(",", maxsplit=1)[0]
    assert str(launcher[0]).split(",")[0] == first
    assert ranks == [[first, True]] * 8


def test_nothing_is_changed_where_nobody_asks(tmp_path: Path) -> None:
    assert told(tmp_path, CUDA_VISIBLE_DEVICES="0,1") == [
        ["0,1", False],
        ["0", False],
        ["1", False],
    ]


@pytest.mark.parametrize(("name", "settings"), [("two", 12), ("eight", 3)])
def test_the_studies_name_settings_for_servers_side_by_side(name: str, settings: int) -> None:
    study = load_study(FOLDER / f"{name}.yaml").resolved(gpus_present=True)
    assert len(todo(study, [], everything=False)) == settings
    assert study.baseline_launch().flags["tp-size"] == {"two": 2, "eight": 8}[name]
    assert study.engine.gpus == 1


PLUGIN = """
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.layers.activation import SiluAndMul
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.rotary_embedding import RotaryEmbedding
print([k.forward_cuda is k.forward_native for k in (SiluAndMul, RMSNorm, RotaryEmbedding)])
"""


def with_torch(*words: str, on_path: Path, **env: str) -> list[str]:
    """Run the Python that has SGLang; return the lines that it prints."""
    found = subprocess.run(
        [python("0.5.17"), "-W", "ignore", *words],
        env={"PATH": "/usr/bin:/bin", "SWEEPER_TEST_PATH": str(on_path), **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    return found.stdout.splitlines()


@pytest.mark.sglang
@pytest.mark.parametrize(("asked", "native"), [("1", True), ("", False)])
def test_the_plugin_takes_pytorchs_operations(asked: str, native: bool) -> None:
    lines = with_torch("-c", PLUGIN, on_path=FOLDER, ONE_GPU_NATIVE=asked)
    assert lines[-1] == str([native] * 3)


@pytest.mark.sglang
def test_the_agreement_is_timed_beside_another_and_checked() -> None:
    other = str(CHECKOUT / "sweeper" / "draft_tp" / "agreement.py")
    words = ("-m", "benchmarks.agreement", "--blocks", "2", "--beside", other)
    title, _, *rows = with_torch(*words, on_path=CHECKOUT)
    assert title == "2 ranks on CPU, 1 requests a round"
    assert [row.split()[0] for row in rows] == ["all-gather", "settle", "beside"]
    assert rows[1].split()[-1] == rows[2].split()[-1]
