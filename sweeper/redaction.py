"""Keeps secrets out of everything that is stored, printed or shown."""

import re
from collections.abc import Mapping
from typing import TypeVar

HIDDEN = "***"

_SECRET_NAME = re.compile(
    r"(?i)(^|[-_.])(api[-_]?key|admin[-_]?key|token|secret|password|passwd|credential|auth)"
    r"s?($|[-_.])"
)
#: Flags whose names hold a word from above and whose values are no secrets.
_NOT_SECRET = re.compile(r"(?i)token(s|izer)|draft[-_]token|max[-_].*token|token[-_](map|mode)")
_SECRET_TEXT = re.compile(
    r"(?i)(--(?:admin-)?api-key[= ]|bearer\s+|(?:hf|sk|ghp)_)(\S+)|(://[^/\s:@]+:)([^@/\s]+)(@)"
)

_V = TypeVar("_V")


def is_secret_name(name: str) -> bool:
    """Tell whether a flag or variable of this name holds a secret."""
    return bool(_SECRET_NAME.search(name)) and not _NOT_SECRET.search(name)


def redact_mapping(values: Mapping[str, _V]) -> dict[str, _V | str]:
    """Return `values` with the value of each secret name hidden."""
    return {name: HIDDEN if is_secret_name(name) else value for name, value in values.items()}


def redact_text(text: str) -> str:
    """Return `text` with keys, bearer tokens and passwords in addresses hidden."""

    def hide(match: re.Match[str]) -> str:
        if match.group(1):
            return match.group(1) + HIDDEN
        return match.group(3) + HIDDEN + match.group(5)

    return _SECRET_TEXT.sub(hide, text)
