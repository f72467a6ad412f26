"""Keeps secrets out of everything that is stored, printed or shown."""

import re
from collections.abc import Mapping
from typing import TypeVar

HIDDEN = "***"

#: "token" counts only as the last word: HF_TOKEN is one, max-total-tokens and token-map are not.
_SECRET_NAME = re.compile(
    r"(?i)(^|[-_.])((api|admin|access|private)[-_]?(api[-_]?)?key|secret|password|passwd"
    r"|credentials?|auth)($|[-_.])|(^|[-_.])token$"
)
_SECRET_TEXT = re.compile(
    r"(?i)(--(?:admin-)?api-key[= ]|bearer\s+|(?:hf|sk|ghp)_)(\S+)|(://[^/\s:@]+:)([^@/\s]+)(@)"
)

_V = TypeVar("_V")


def is_secret_name(name: str) -> bool:
    """Tell whether a flag or variable of this name holds a secret."""
    return bool(_SECRET_NAME.search(name))


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
