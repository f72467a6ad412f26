"""YAML text -> tree with line numbers -> plain Python. The only user of ruamel.yaml."""

from collections.abc import Iterable, Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from sweeper.errors import ConfigError, UserError
from sweeper.redaction import redact_text

MAX_NODES = 50_000

#: Where a value stands in the file: keys and list positions.
KeyPath = tuple[str | int, ...]


def parse_yaml(text: str, source: str) -> CommentedMap:
    yaml = YAML(typ="rt", pure=True)
    try:
        tree = yaml.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = (error.problem or str(error)).split("\n")[0]
        # Of a key that stands there twice it tells both values, which may be secrets.
        problem = redact_text(problem.split(" with value ")[0])
        raise ConfigError(
            f"not valid YAML: {problem}", path=source, line=mark.line + 1 if mark else None
        ) from None
    except (YAMLError, RecursionError, ValueError) as error:
        problem = redact_text(str(error).splitlines()[0])
        raise ConfigError(f"not valid YAML: {problem}", path=source) from None
    if not isinstance(tree, CommentedMap):
        raise ConfigError("must hold keys and values; 'study:' is the first", path=source)
    return tree


def plain(tree: object, budget: list[int] | None = None) -> Any:
    """Return ruamel's tree as plain Python; repeated aliases count each time they are used."""
    budget = [MAX_NODES] if budget is None else budget
    budget[0] -= 1
    if budget[0] < 0:
        raise UserError(f"space file has more than {MAX_NODES} values")
    if isinstance(tree, Mapping):
        return {str(key): plain(value, budget) for key, value in tree.items()}
    if isinstance(tree, list):
        return [plain(value, budget) for value in tree]
    for kind in (bool, int, float, str):
        if isinstance(tree, kind):
            return kind(tree)
    return None if tree is None else str(tree)


def line_of(tree: object, path: KeyPath) -> int | None:
    """Return the line, from 1, of the deepest part of `path` that stands in the file."""
    line: int | None = None
    for part in path:
        try:
            if isinstance(tree, CommentedMap) and part in tree:
                line = tree.lc.key(part)[0] + 1
                tree = tree[part]
            elif isinstance(tree, CommentedSeq) and isinstance(part, int):
                line = tree.lc.item(part)[0] + 1
                tree = tree[part]
            else:
                break
        except (KeyError, IndexError, TypeError, AttributeError):
            break
    return line


def dotted(path: Iterable[str | int]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
