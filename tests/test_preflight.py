"""The preflight without SGLang: what is asked, believed and kept."""

import os
import sys
import textwrap
from pathlib import Path

import pytest

from sweeper.config import parse_study
from sweeper.engines import sglang_preflight
from sweeper.engines.sglang_preflight import CommandLine, Verdicts, version_warning
from sweeper.errors import UserError
from sweeper.planning.plan import make_plan
from sweeper.planning.preflight import ask_engine

STUDY = """\
study: asked
engine:
  kind: sglang
  command: [COMMAND]
  model: /models/m
  gpus: 1
  preflight: true
  flags: {speculative-algorithm: EAGLE3, speculative-eagle-topk: 1, speculative-draft-model-path: /models/d}
parameters:
  steps: {flag: speculative-num-steps, values: [4, 2, 3]}
  tokens: {flag: speculative-num-draft-tokens, values: [9], when: steps > 9, otherwise: steps + 1}
known: [{steps: 2}, {steps: 3}]
workloads: [{name: single}]
objectives: [{maximize: output_tok_s}]
"""
#: A package that looks like SGLang: refuses what the test names, at its own moment.
FAKE = """
import sys, time

class Args:
    def __init__(self, argv):
        self.argv = argv
    def resolve_once(self):
        if "fake-hang" in self.argv[1]:
            time.sleep(600)
        if "2" in self.argv:
            raise ValueError("two steps are unlucky")
    def check_server_args(self):
        assert "3" not in self.argv

def prepare_server_args(argv):
    print("noise on standard output")
    if "1" in argv and "fake-one" in argv[1]:
        print("usage: x\\nsglang serve: error: argument --x: no", file=sys.stderr)
        sys.exit(2)
    if "fake-broken" in argv[1]:
        raise OSError("no config.json")
    return Args(argv)
"""


@pytest.fixture
def fake(tmp_path: Path) -> dict[str, str]:
    """Install a package that answers as SGLang does; return the environment that finds it."""
    site = tmp_path / "site"
    package = site / "sglang" / "srt"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "server_args.py").write_text(textwrap.dedent(FAKE))
    info = site / "sglang-0.5.99.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.99\n")
    return {"PYTHONPATH": str(site)}


def ask(
    fake: dict[str, str],
    words: list[tuple[str, ...]],
    *,
    cache: Path | None = None,
    gpus_present: bool = True,
    limit_s: float | None = None,
) -> Verdicts:
    lines = [CommandLine(argv=("--model-path", *w), env={}) for w in words]
    return sglang_preflight.validate(
        (sys.executable,),
        "0.5.99",
        lines,
        env=fake,
        gpus_present=gpus_present,
        cache=cache,
        cores=2,
        limit_s=limit_s,
    )


def test_each_line_gets_its_own_answer(fake: dict[str, str]) -> None:
    found = ask(fake, [("m", "2"), ("m", "3"), ("m",), ("fake-one", "1"), ("fake-broken",)])
    assert found.refused == {
        0: "SGLang 0.5.99 refuses it: two steps are unlucky",
        1: 'SGLang 0.5.99 refuses it: assert "3" not in self.argv',
        3: "SGLang 0.5.99 refuses it: argument --x: no",
    }
    assert (found.asked, found.unanswered, found.problem) == (5, 1, "")


PLUGINS = """
import os

def load_plugins():
    from sglang.srt import server_args
    if os.environ.get("PLUGIN") == "refuses":
        raise SystemExit("sweeper draft TP: not with this version")
    server_args.Args.resolve_once = lambda self: None
"""


def test_plugins_are_loaded_as_the_server_does(fake: dict[str, str]) -> None:
    plugins = Path(fake["PYTHONPATH"]) / "sglang" / "srt" / "plugins"
    plugins.mkdir()
    (plugins / "__init__.py").write_text(PLUGINS)
    assert ask(fake, [("m", "2"), ("m", "3")]).refused.keys() == {1}
    refused = ask(fake | {"PLUGIN": "refuses"}, [("m",)]).refused
    assert refused == {0: "SGLang 0.5.99 refuses it: sweeper draft TP: not with this version"}


def test_answers_are_kept_and_asked_for_once(fake: dict[str, str], tmp_path: Path) -> None:
    first = ask(fake, [("m", "2"), ("m",)], cache=tmp_path / "cache")
    second = ask(fake, [("m", "2"), ("m",), ("m", "3")], cache=tmp_path / "cache")
    assert (first.asked, second.asked) == (2, 1)
    assert second.refused.keys() == {0, 2}


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 1}', '{"a": ["b"]}'])
def test_a_spoilt_cache_is_no_cache(fake: dict[str, str], tmp_path: Path, content: str) -> None:
    (tmp_path / "sglang-0.5.99.json").write_text(content)
    assert ask(fake, [("m", "2")], cache=tmp_path).refused.keys() == {0}


def test_without_gpus_words_about_gpus_refuse_nothing(
    fake: dict[str, str], tmp_path: Path
) -> None:
    module = Path(fake["PYTHONPATH"]) / "sglang" / "srt" / "server_args.py"
    module.write_text(module.read_text().replace("two steps are unlucky", "requires Hopper"))
    assert ask(fake, [("m", "2")]).refused.keys() == {0}
    blind = ask(fake, [("m", "2")], gpus_present=False)
    assert (blind.refused, blind.unanswered) == ({}, 1)


def test_a_line_that_hangs_takes_no_other_with_it(fake: dict[str, str]) -> None:
    found = ask(fake, [("m", "2"), ("fake-hang",)], limit_s=5.0)
    assert found.refused.keys() == {0}
    assert found.unanswered == 1
    assert found.problem == "no answer within 5 s"


def test_a_package_that_cannot_be_imported_is_told_of(fake: dict[str, str]) -> None:
    module = Path(fake["PYTHONPATH"]) / "sglang" / "srt" / "server_args.py"
    module.write_text("import no_such_module_at_all")
    found = ask(fake, [("m",)])
    assert found.refused == {}
    assert "No module named 'no_such_module_at_all'" in found.problem


@pytest.mark.parametrize(
    ("version", "words"),
    [("0.5.14", "older than 0.5.15"), ("0.5.99", "newer than 0.5.23"), ("0.6.0rc1", "newer")],
)
def test_an_unknown_version_is_warned_of(version: str, words: str) -> None:
    assert words in str(version_warning(version))


@pytest.mark.parametrize("version", ["0.5.15", "0.5.17", "0.5.23", "0.5.23.post1"])
def test_a_known_version_is_not(version: str) -> None:
    assert version_warning(version) is None


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (["python", "-m", "sglang.launch_server"], (sys.executable,)),
        ([sys.executable, "-X", "utf8", "-m", "sglang.launch_server"], (sys.executable, "-X", "utf8")),
        (["/no/such/python", "-m", "sglang.launch_server"], None),
        (["docker", "run", "image", "python", "-m", "sglang.launch_server"], None),
        (["python", "-m", "sweeper.engines.simulated"], None),
        (["sglang", "serve"], None),
    ],
)  # fmt: skip
def test_only_a_python_that_is_here_is_asked(
    command: list[str], wanted: tuple[str, ...] | None
) -> None:
    assert sglang_preflight.python_of(command) == wanted


def study_text(fake: dict[str, str]) -> str:
    command = f"{sys.executable}, -m, sglang.launch_server"
    env = f"env: {{PYTHONPATH: {fake['PYTHONPATH']}}}"
    return STUDY.replace("COMMAND", command).replace("preflight: true", env)


def test_a_plan_and_the_known_settings_lose_what_is_refused(
    fake: dict[str, str], tmp_path: Path
) -> None:
    study = parse_study(study_text(fake), "asked.yaml")
    plan = make_plan(study)
    said: list[str] = []
    checked = ask_engine(study, plan, gpus_present=True, say=said.append, cache=tmp_path / "c")
    steps = [point["steps"] for point, _ in checked.plan.settings.values()]
    assert steps == [4]
    assert checked.study.known == ()
    assert sum(map(len, checked.plan.refused.values())) == 2
    assert said == [
        f"preflight: {version_warning('0.5.99')}",
        "preflight: asking SGLang 0.5.99 about 4 settings",
    ]


def test_a_plan_without_any_setting_left_is_an_error(fake: dict[str, str], tmp_path: Path) -> None:
    study = parse_study(study_text(fake).replace("[4, 2, 3]", "[2, 3]"), "asked.yaml")
    with pytest.raises(UserError, match="no setting of the space can be launched"):
        ask_engine(study, make_plan(study), gpus_present=True, say=print, cache=tmp_path / "c")


def test_a_large_space_of_which_only_the_beginning_is_refused_is_told_so() -> None:
    values = ", ".join(map(str, range(30)))
    names = ("a", "b", "c")
    text = "study: large\nengine: {kind: simulated, model: m, gpus: 1}\nparameters:\n"
    text += "".join(f"  {name}: {{env: {name.upper()}, values: [{values}]}}\n" for name in names)
    text += "constraints: [a > 25]\nworkloads: [{name: single}]\n"
    study = parse_study(text + "objectives: [{maximize: output_tok_s}]\n", "large.yaml")
    with pytest.raises(UserError, match=r"no setting that was looked at .* 20000 first points"):
        make_plan(study)


@pytest.mark.parametrize(
    ("old", "new"), [("kind: sglang", "kind: simulated"), ("env: ", "preflight: false\n  env: ")]
)
def test_nobody_is_asked_where_nobody_should_be(
    fake: dict[str, str], tmp_path: Path, old: str, new: str
) -> None:
    study = parse_study(study_text(fake).replace(old, new), "asked.yaml")
    plan = make_plan(study)
    said: list[str] = []
    checked = ask_engine(study, plan, gpus_present=True, say=said.append, cache=tmp_path / "c")
    assert checked.plan is plan
    assert said == []
    assert not (tmp_path / "c").exists()


def test_a_machine_without_the_engine_says_so_and_goes_on(tmp_path: Path) -> None:
    text = STUDY.replace("COMMAND", "/no/such/python, -m, sglang.launch_server")
    study = parse_study(text, "asked.yaml")
    plan = make_plan(study)
    said: list[str] = []
    checked = ask_engine(study, plan, gpus_present=True, say=said.append, cache=tmp_path)
    assert (checked.plan, checked.version, len(said)) == (plan, None, 1)
    assert os.listdir(tmp_path) == []  # noqa: PTH208
