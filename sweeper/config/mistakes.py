"""pydantic's findings -> one message with file, line, key and the nearest right key."""

import difflib
import re
from typing import Any

from pydantic import BaseModel, ValidationError
from ruamel.yaml.comments import CommentedMap

from sweeper.config.schema import SpaceFile
from sweeper.config.source import KeyPath, dotted, line_of
from sweeper.errors import ConfigError
from sweeper.records import Scalar
from sweeper.redaction import HIDDEN, is_secret_name, redact_text


def first_mistake(error: ValidationError, tree: CommentedMap, source: str) -> ConfigError:
    """Turn pydantic's findings into one message about the first of them in the file."""
    found = []
    for item in error.errors():
        path: KeyPath = tuple(
            p for p in item["loc"] if isinstance(p, int) or not _UNION_PART.fullmatch(p)
        )
        found.append((line_of(tree, path) or 0, path, item))
    line, path, item = min(found, key=lambda f: (f[2]["type"] != "extra_forbidden", f[0]))
    # A secret may stand anywhere in a file with a mistake, even in the place of a key.
    key = dotted(redact_text(p) if isinstance(p, str) else p for p in path)
    kind = item["type"]
    shown = _shown(path, item.get("input"))
    match kind:
        case "extra_forbidden":
            names = _keys_at(path[:-1])
            near = difflib.get_close_matches(str(path[-1]), names, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else f"keys here: {', '.join(names)}"
            what = f"unknown key {key!r}; {hint}"
        case "missing":
            what = f"key {key!r} is missing"
        case "too_short":
            what = f"{key!r} is empty; it needs at least one entry"
        case "literal_error":
            what = f"{key!r} must be {item['ctx']['expected']}{shown}"
        case "string_pattern_mismatch":
            what = f"{key!r} must be letters, digits, '.', '_' or '-' (at most 64){shown}"
        case "value_error":
            problem = redact_text(str(item["ctx"]["error"]))
            what = f"{key!r}: {problem}" if key else problem
        case "string_type" if [p for _, p, _ in found].count(path) > 1:
            # A value of several types: pydantic tells of each, and text is the first.
            what = f"{key!r} must be text, a number, true or false{shown}"
            if "flags" in path and item.get("input") is None:
                what += "; a bare flag is written true"
        case _:
            message = re.sub(r"^Input should be (a )?(valid )?", "must be ", item["msg"])
            message = re.sub(r" or instance of \w+", "", message)
            message = message.replace("dictionary", "mapping of keys to values")
            what = f"{key!r} {message}{shown}"
    return ConfigError(what, path=source, line=line or None)


def _shown(path: KeyPath, given: object) -> str:
    """Return what stands there, unless it is of no use or a secret."""
    if not isinstance(given, Scalar | None):
        return ""
    if any(isinstance(p, str) and is_secret_name(p) for p in path):
        return f", not {HIDDEN!r}"
    return f", not {(redact_text(given) if isinstance(given, str) else given)!r}"


_UNION_PART = re.compile(r"str|int|float|bool|list\[.*\]|function-.*|\[key\]")


def _keys_at(path: KeyPath) -> list[str]:
    """Return the keys that the schema allows at `path`."""
    model: type[BaseModel] | None = SpaceFile
    for part in path:
        if isinstance(part, int) or model is None:
            continue
        field = model.model_fields.get(part)
        # A part that is no field is a free name, as under `parameters`: the model stays.
        if field is not None:
            model = _inner_model(field.annotation)
    return list(model.model_fields) if model is not None else []


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _inner_model(argument)
        if found is not None:
            return found
    return None
