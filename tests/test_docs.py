"""The documents name what there is, and their commands are the ones that work."""

import re
from pathlib import Path

import pytest

from sweeper.config import parse_study
from sweeper.config.schema import SpaceFile, WorkloadModel
from sweeper.errors import POLICIES
from sweeper.planning.plan import make_plan
from sweeper.space import Space

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_link_to_a_file_of_the_project_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_key_of_a_space_file_is_explained() -> None:
    text = (ROOT / "docs" / "space-file.md").read_text(encoding="utf-8")
    for name, field in SpaceFile.model_fields.items():
        inner = getattr(field.annotation, "model_fields", {})
        for key in (name, *inner):
            assert re.search(rf"`[^`]*\b{key}\b[^`]*`", text), f"{name}.{key} is not explained"
    for key in WorkloadModel.model_fields:
        assert f"`{key}`" in text


def test_the_parameters_shown_are_parameters() -> None:
    text = (ROOT / "docs" / "space-file.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    study = parse_study(
        "study: shown\nengine: {model: m, gpus: 1, flags: {speculative-algorithm: EAGLE3}}\n"
        + example.replace(
            "parameters:\n",
            "parameters:\n  topk: {flag: speculative-eagle-topk, values: [1, 2]}\n",
        )
        + "workloads: [{name: a}]\nobjectives: [{maximize: output_tok_s}]\n",
        "shown.yaml",
    )
    assert isinstance(study.space, Space)
    assert make_plan(study.resolved(gpus_present=False)).settings


def test_every_failure_class_is_explained() -> None:
    text = (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")
    for kind in POLICIES:
        assert f"`{kind}`" in text


def test_the_two_commands_of_the_readme_are_found_by_their_marks() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for mark, last in (("demo", "sweeper.search spaces/eagle3.yaml"), ("tests", "pytest")):
        (block,) = re.findall(rf"<!-- {mark} -->\n```sh\n(.*?)```", text, re.DOTALL)
        assert block.splitlines()[0] == "python3 -m venv .venv"
        assert block.rstrip().endswith(last)


def test_every_room_is_named_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for path in sorted((ROOT / "sweeper").iterdir()):
        if path.is_dir() and (path / "__init__.py").exists():
            assert re.search(rf"^{path.name}/ ", text, re.MULTILINE), path.name
        elif path.suffix == ".py" and path.stem != "__init__":
            assert re.search(rf"\b{path.stem}\b", text), path.name
