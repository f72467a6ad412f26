"""The places in SGLang that are changed, against sources: made up ones and released wheels."""

from pathlib import Path

import pytest

from sweeper.draft_tp import versions
from sweeper.draft_tp.plan import Refused
from tests.real.installed import FOLDER

RELEASES = {"0.5.15": "group", "0.5.17": "group", "0.5.23": "layout"}


class MadeUp:
    """Sources that have exactly the places of a style, less those left out."""

    def __init__(self, style: versions.Style, *, without: str = "", extra: str = "") -> None:
        self.modules: dict[str, str] = {}
        classes: dict[tuple[str, str], list[str]] = {}
        for path, names in style.points.items():
            if path == without:
                continue
            parts = path.split(".")
            arguments = ", ".join((*names, extra) if extra else names)
            line = f"def {parts[-1]}({arguments}): ..."
            if parts[-2][0].isupper():
                classes.setdefault((".".join(parts[:-2]), parts[-2]), []).append(line)
            else:
                module = ".".join(parts[:-1])
                self.modules[module] = self.modules.get(module, "") + line + "\n"
        for (module, name), lines in classes.items():
            body = "\n".join("    " + line for line in lines)
            self.modules[module] = self.modules.get(module, "") + f"class {name}:\n{body}\n"

    def source(self, module: str) -> str | None:
        return self.modules.get(module)


def released(version: str) -> "Released":
    folder = FOLDER / version
    if not folder.is_dir():
        pytest.fail(f"there is no {folder}; run scripts/real_sglang.sh")
    return Released(folder)


class Released:
    """Sources of an unpacked wheel."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def source(self, module: str) -> str | None:
        path = self.folder / (module.replace(".", "/") + ".py")
        return path.read_text(encoding="utf-8") if path.is_file() else None


@pytest.mark.parametrize("style", versions.STYLES, ids=lambda style: style.name)
def test_an_unknown_version_with_all_places_is_taken(style: versions.Style) -> None:
    assert versions.choose("9.9", MadeUp(style, extra="more").source) == style


@pytest.mark.parametrize("style", versions.STYLES, ids=lambda style: style.name)
def test_a_version_that_lacks_a_place_is_refused_with_its_name(style: versions.Style) -> None:
    for path in style.points:
        with pytest.raises(Refused, match=f"no {path}"):
            versions.choose(style.versions[0], MadeUp(style, without=path).source)


def test_a_changed_signature_is_refused_with_both() -> None:
    layout, _ = versions.STYLES
    made = MadeUp(layout)
    module, _, name = versions.LAYOUT.rpartition(".")
    made.modules[module] = f"def {name}(draft, spec): ..."
    with pytest.raises(Refused, match=r"takes \(draft, spec\), not \(model_spec, \.\.\.\)"):
        versions.choose("9.9", made.source)


def test_an_sglang_without_sources_is_refused() -> None:
    with pytest.raises(Refused, match=r"SGLang 9\.9 is not one of"):
        versions.choose("9.9", lambda _: None)


def test_a_source_is_found_without_importing_it() -> None:
    import sys

    name = "sweeper.draft_tp.agreement"
    before = name in sys.modules
    assert "class Agreement" in str(versions.installed_source(name))
    assert (name in sys.modules) == before
    assert versions.installed_source("no.such.module") is None
    assert versions.installed_source("math") is None


@pytest.mark.sglang
@pytest.mark.parametrize(("version", "style"), RELEASES.items())
def test_a_release_has_every_place_of_its_style_only(version: str, style: str) -> None:
    source = released(version).source
    fits = {s.name: versions.differences(s, source) for s in versions.STYLES}
    assert fits.pop(style) == []
    assert all(fits.values())
    assert versions.choose(version, source).name == style
    # A next release is judged by its places.
    assert versions.choose("9.9", source).name == style
