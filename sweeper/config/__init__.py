"""The space file: YAML -> validated records.

    text --source--> tree with lines --schema--> models --build--> Study

Every mistake is one `ConfigError` with the file, the line, the key and the nearest right key.
"""

from importlib import resources
from pathlib import Path

from pydantic import ValidationError

from sweeper.config.build import Builder
from sweeper.config.mistakes import first_mistake
from sweeper.config.schema import SpaceFile
from sweeper.config.secrets import without_secrets
from sweeper.config.source import parse_yaml, plain
from sweeper.errors import ConfigError, UserError
from sweeper.space import suggest
from sweeper.study import Study

__all__ = ["find_space", "load_study", "name_of", "parse_study", "shipped_spaces"]

MAX_BYTES = 1_000_000


def shipped_spaces() -> dict[str, Path]:
    """Return the space files that come with this package, by name without suffix."""
    inside = Path(str(resources.files("sweeper"))) / "search_spaces"
    beside = Path(str(resources.files("sweeper"))).parent / "search_spaces"
    folder = inside if inside.is_dir() else beside
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_space(name: str) -> Path:
    """Return the file that `name` means: a path, or the name of a shipped space.

    Raises:
        UserError: There is neither.
    """
    path = Path(name)
    if path.is_file():
        return path
    shipped = shipped_spaces()
    if path.stem in shipped and (path.parent in (Path(), Path("spaces"), Path("search_spaces"))):
        return shipped[path.stem]
    if path.is_dir():
        raise UserError(f"{name} is a folder; name a space file in it")
    raise UserError(
        f"there is no space file {name}; shipped spaces are: {', '.join(shipped) or 'none'}"
        f"{suggest(path.stem, list(shipped))}"
    )


def load_study(path: Path) -> Study:
    """Read and check a space file.

    Raises:
        ConfigError: The file is no valid space file.
    """
    source = str(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", path=source) from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"is larger than {MAX_BYTES} bytes", path=source)
    try:
        return parse_study(data.decode("utf-8-sig"), source)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError("is not UTF-8 text", path=source, line=line) from None


def parse_study(text: str, source: str) -> Study:
    """Check the text of a space file; `source` names it in messages.

    Raises:
        ConfigError: It is no valid space file.
    """
    tree = parse_yaml(text, source)
    try:
        model = SpaceFile.model_validate(plain(tree))
    except ValidationError as error:
        raise first_mistake(error, tree, source) from None
    return Builder(tree, source).study(model, without_secrets(text))


def name_of(text: str) -> str | None:
    """Return the name of the study that a space file is of, valid or not; None if none is said."""
    try:
        found = parse_yaml(text, "").get("study")
    except ConfigError:
        return None
    return found if isinstance(found, str) else None
