"""SGLang's flags, as its own parsers list them: names, aliases, types and defaults.

The tables are dumps of the argument parsers of the two ends of the supported range; a version
between them may lack a flag that both ends share, but that is for the server to say.
"""

import difflib
import json
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from sweeper.records import FlagValue, Scalar

#: The versions whose parsers were dumped, oldest first.
VERSIONS = ("0.5.15", "0.5.23")

#: Abbreviations that both parsers accept and that every guide uses; others are left alone,
#: since the next version's new flag may make them ambiguous.
_USUAL_SHORT_NAMES = {"tp": "tp-size", "dp": "dp-size"}

_TRUE_WORDS = frozenset({"true", "yes", "on"})
_FALSE_WORDS = frozenset({"false", "no", "off"})


@cache
def tables() -> Mapping[str, Mapping[str, Any]]:
    """Return version -> its table: flags by name, and aliases."""
    folder = resources.files("sweeper.engines")
    found = {
        version: json.loads(
            (folder / f"flags_{version.replace('.', '_')}.json").read_text(encoding="utf-8")
        )
        for version in VERSIONS
    }
    return MappingProxyType(found)


@cache
def _aliases() -> Mapping[str, str]:
    """Return alias -> flag; an alias that is a flag of its own in any version is none."""
    flags = all_flags()
    merged = dict(_USUAL_SHORT_NAMES)
    for table in tables().values():
        merged.update({a: name for a, name in table["aliases"].items() if a not in flags})
    return MappingProxyType(merged)


@cache
def all_flags() -> Mapping[str, Mapping[str, Any]]:
    """Return every flag of every supported version -> its newest description."""
    merged: dict[str, Mapping[str, Any]] = {}
    for table in tables().values():
        merged.update(table["flags"])
    return MappingProxyType(merged)


@cache
def _negations() -> frozenset[str]:
    """Return the `no-` forms of flags that are on by default."""
    return frozenset(spec["negation"] for spec in all_flags().values() if spec.get("negation"))


@cache
def full_name(name: str) -> str:
    """Return a flag's name without dashes in front, with dashes inside and aliases resolved."""
    plain = name.lstrip("-").replace("_", "-")
    return _aliases().get(plain, plain)


@cache
def is_known(name: str) -> bool:
    """Tell whether any supported version knows the flag, by its full name or an alias."""
    return full_name(name) in all_flags() or full_name(name) in _negations()


def nearest(name: str) -> str | None:
    """Return the known flag that a mistyped name most likely means, or None."""
    plain = full_name(name)
    names = sorted(all_flags())
    longer = [known for known in names if known.startswith(plain)]
    if len(longer) == 1:
        return longer[0]
    close = difflib.get_close_matches(plain, [*names, *_aliases()], n=1, cutoff=0.6)
    return full_name(close[0]) if close else None


# `typed` keeps 1 and True, which are equal, apart.
@lru_cache(maxsize=4096, typed=True)
def typed(name: str, value: FlagValue) -> FlagValue:
    """Return a value in the type that the flag's parser gives it.

    "8" becomes 8 for a flag of integers, 1 becomes 1.0 for one of fractions, and one value
    becomes a tuple for a flag that takes several. What does not fit is returned as it is, for
    the server to refuse.
    """
    spec = all_flags().get(full_name(name))
    if spec is None:
        return value
    if not spec["takes_value"]:
        return _as_switch(value)
    if isinstance(value, tuple):
        return tuple(_as_type(spec["type"], v) for v in value)
    if isinstance(value, bool):
        return value
    if spec["nargs"] in {"+", "*"}:
        return (_as_type(spec["type"], value),)
    return _as_type(spec["type"], value)


@lru_cache(maxsize=4096, typed=True)
def is_default(name: str, value: FlagValue) -> bool:
    """Tell whether the value is what every supported version takes without the flag.

    A default of None means that the engine decides, so no value equals it.
    """
    if value is False:
        return True
    defaults: list[object] = []
    for table in tables().values():
        spec = table["flags"].get(full_name(name))
        if spec is None or spec["default"] is None or not spec["takes_value"]:
            return False
        default = spec["default"]
        defaults.append(tuple(default) if isinstance(default, list) else default)
    return all(d == value and isinstance(d, bool) == isinstance(value, bool) for d in defaults)


def _as_switch(value: FlagValue) -> FlagValue:
    word = str(value).lower()
    if word in _TRUE_WORDS:
        return True
    if word in _FALSE_WORDS:
        return False
    return value


def _as_type(kind: str, value: Scalar) -> Scalar:
    if isinstance(value, bool):
        return value
    try:
        if kind == "float":
            return float(value)
        if kind in {"int", "human_readable_int"}:
            whole = int(value)
            return whole if isinstance(value, str) or whole == value else value
    except (ValueError, OverflowError):
        return value
    return str(value) if kind in {"str", "nullable_str"} else value
