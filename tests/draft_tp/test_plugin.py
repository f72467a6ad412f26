"""The entry point, called by released SGLangs' own loader in environments with an installed sweeper."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.real.installed import FOLDER, python
from tests.wheel import install

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

EVERY = pytest.mark.parametrize("version", ["0.5.15", "0.5.17", "0.5.23"])
EAGLE3 = FOLDER / "models" / "eagle3"
#: Loads the plugins as a server's first process does, and prints what they did.
LOADS = """
import json, sys
from sglang.srt.plugins import load_plugins, load_plugins_by_group
from sglang.srt.plugins.hook_registry import HookRegistry
found = load_plugins_by_group("sglang.srt.plugins")
load_plugins()
print(json.dumps({"found": sorted(found), "targets": sorted(HookRegistry._patched),
                  "torch": "sweeper.draft_tp.hooks" in sys.modules}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("plugin"))


def run(version: str, site: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["nice", "-n", "10", python(version), "-W", "ignore", *words],
        env={"PATH": os.environ["PATH"], "SWEEPER_TEST_PATH": str(site), **environ},
        cwd=site,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def loaded(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@EVERY
def test_sglang_finds_the_plugin_and_without_the_variable_nothing_is_changed(
    version: str, site: Path
) -> None:
    answer = loaded(run(version, site, "-c", LOADS))
    assert answer == {"found": ["sweeper-draft-tp"], "targets": [], "torch": False}


@EVERY
def test_with_the_variable_the_arguments_are_watched(version: str, site: Path) -> None:
    answer = loaded(run(version, site, "-c", LOADS, SWEEPER_DRAFT_TP="1"))
    assert answer["targets"] == ["sglang.srt.server_args.ServerArgs.check_server_args"]
    assert not answer["torch"]


def launch(version: str, site: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = ["-m", "sglang.launch_server", "--model-path", str(EAGLE3 / "target")]
    words += ["--device", "cpu", "--attention-backend", "torch_native", "--tp-size", "2"]
    words += ["--cuda-graph-backend-decode", "disabled", "--skip-tokenizer-init", *more]
    return run(version, site, *words, SWEEPER_DRAFT_TP="1", SGLANG_CPU_OMP_THREADS_BIND="0|0")


@EVERY
def test_a_setting_that_cannot_be_is_refused_before_any_process_starts(
    version: str, site: Path
) -> None:
    draft = ["--speculative-draft-model-path", str(EAGLE3 / "target")]
    done = launch(version, site, "--speculative-algorithm", "STANDALONE", *draft)
    assert done.returncode != 0
    assert "SWEEPER_DRAFT_TP=1 with --tp-size 2: --speculative-algorithm is STANDALONE" in (
        done.stderr
    )
    assert "Init torch distributed" not in done.stderr
    assert "Load weight begin" not in done.stderr


def test_an_sglang_of_an_unknown_make_is_refused_at_once(site: Path) -> None:
    code = LOADS.replace(
        "import json, sys\n",
        "import json, sys\n"
        "from sweeper.draft_tp import plugin, versions\n"
        "versions.installed_source = lambda module: 'class EagleDraftWorker: ...'\n",
    )
    done = run("0.5.23", site, "-c", code, SWEEPER_DRAFT_TP="1")
    assert done.returncode == 1
    assert "SGLang 0.5.23 is not one of those it is made for" in done.stderr


#: Applies every hook to SGLang's own classes and names those that did not take.
INSTALLS = """
import json, pkgutil, sys
import sglang.version
from sweeper.draft_tp import versions
from sweeper.draft_tp.hooks import DraftTP
from sweeper.draft_tp.plan import Plan
style = versions.choose(sglang.version.__version__, versions.installed_source)
DraftTP(Plan(target_size=2, draft_size=1), style).install()
from sglang.srt.speculative import eagle_worker_v2 as worker
common = sys.modules.get("sglang.srt.speculative.eagle_worker_common", worker)
names = {"layout": (worker, "resolve_draft_parallel_layout"),
         "group": (worker if hasattr(worker, "build_tree_kernel_efficient") else common,
                   "build_tree_kernel_efficient")}
where, name = names[style.name]
print(json.dumps({"style": style.name, "where_used": hasattr(getattr(where, name), "__wrapped__")}))
"""


@EVERY
def test_every_hook_takes_hold_where_sglang_uses_it(version: str, site: Path) -> None:
    answer = loaded(run(version, site, "-c", INSTALLS))
    assert answer["where_used"]


#: Installs once for each target, after another plugin has put a hook of its own on that one.
OTHERS = """
import json, sys
import sglang.version
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sweeper.draft_tp import versions
from sweeper.draft_tp.hooks import DraftTP
from sweeper.draft_tp.plan import Plan
style = versions.choose(sglang.version.__version__, versions.installed_source)
def install():
    DraftTP(Plan(target_size=2, draft_size=1), style).install()
install()
said = {target: "" for target in HookRegistry._patched}
for target in said:
    HookRegistry.reset()
    HookRegistry.register(target, lambda result, *a, **k: None, HookType.AFTER)
    HookRegistry.apply_hooks()
    try:
        install()
    except RuntimeError as error:
        said[target] = str(error)
print(json.dumps(said))
"""


@EVERY
def test_a_place_that_another_plugin_has_taken_is_an_error(version: str, site: Path) -> None:
    said = loaded(run(version, site, "-c", OTHERS))
    assert len(said) >= 7
    for target, error in said.items():
        assert error == f"sweeper draft TP: no hook could be put on {target}"
