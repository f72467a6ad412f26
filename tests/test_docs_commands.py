"""The commands of the documents work, and the pages made from code are the code's."""

import functools
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped,unused-ignore]
import pytest
from ruamel.yaml import YAML

from sweeper.config import shipped_spaces
from sweeper.config.json_schema import json_schema
from sweeper.config.json_schema import text as schema_text
from sweeper.docstrings import field_words
from sweeper.records import Limits, Workload
from sweeper.store.describe import columns, page
from sweeper.store.schema import SCHEMAS

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [ROOT / "README.md", ROOT / "examples" / "README.md", *(ROOT / "docs").glob("*.md")]
)
SPACES = {**shipped_spaces(), "demo": ROOT / "examples" / "demo.yaml"}


def commands(page: Path) -> list[list[str]]:
    """Return all commands of a page that start one of the package's programs."""
    found = re.findall(r"python (-m sweeper[^\n`#|)]*)", page.read_text(encoding="utf-8"))
    return [text.rstrip(" .,;:\\").split() for text in found]


def blocks(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(r"<!-- run: \w+ -->\n```sh\n(.*?)```", text, re.DOTALL)


@functools.cache
def help_of(module: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_every_program_that_is_named_has_the_options_that_are_named(page: Path) -> None:
    for _, module, *words in commands(page):
        # The two that print a page, and the simulated server, take all or nothing.
        if module.endswith(("json_schema", "describe", "engines.simulated")):
            continue
        for word in words:
            if word.startswith("--"):
                assert word.split("=")[0] in help_of(module), f"{module} has no {word}"


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p)], ids=lambda p: f"{p.parent.name}-{p.name}"
)
def test_the_commands_that_are_marked_run(page: Path, tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    shutil.copytree(ROOT / "examples" / "demo", tmp_path / "examples" / "demo")
    shutil.copytree(ROOT / "examples" / "demo", tmp_path / "runs" / "eagle3")
    for line in "".join(blocks(page)).splitlines():
        words = shlex.split(line, comments=True)
        assert words[:2] == ["python", "-m"]
        done = subprocess.run(
            [sys.executable, *words[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        assert done.stdout


def test_the_page_on_what_is_stored_is_the_code_s() -> None:
    kept = (ROOT / "docs" / "schema.md").read_text(encoding="utf-8")
    assert kept == page(), "python -m sweeper.store.describe > docs/schema.md"


@pytest.mark.parametrize("table", sorted(SCHEMAS))
def test_every_column_has_a_meaning(table: str) -> None:
    assert [name for name, _, _ in columns(table)] == SCHEMAS[table].names
    assert all(words.endswith(".") for _, _, words in columns(table))


def test_the_json_schema_is_the_code_s() -> None:
    kept = (ROOT / "docs" / "space.schema.json").read_text(encoding="utf-8")
    assert kept == schema_text(), "python -m sweeper.config.json_schema > docs/space.schema.json"


def plain(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path)


@pytest.mark.parametrize("name", sorted(SPACES))
def test_every_shipped_space_keeps_the_json_schema(name: str) -> None:
    jsonschema.validate(plain(SPACES[name]), json_schema())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("engine", "modle"), "x"),
        (("engine", "gpus"), "eight"),
        (("budget", "launches"), 0),
        (("sampler",), "magic"),
        (("workloads",), []),
    ],
)
def test_an_editor_marks_a_mistake(path: tuple[str, ...], value: object) -> None:
    tree = plain(SPACES["eagle3"])
    inner = tree
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(tree, json_schema())


def test_an_editor_has_words_for_every_key() -> None:
    schema = json_schema()
    for part in (schema, *schema["$defs"].values()):
        for key, value in part["properties"].items():
            assert value.get("description"), f"{key} is not explained"


def test_words_of_a_field_may_go_on_over_lines() -> None:
    words = field_words(Workload)
    assert words["ramp_s"].startswith("Engine seconds over which the load grows")
    assert "all others." in words["ramp_s"]
    assert list(field_words(Limits)) == list(Limits.__dataclass_fields__)
