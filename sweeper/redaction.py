"""Keeps secrets out of everything that is stored, printed or shown."""

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

HIDDEN = "***"

#: "token" counts only as the last word: HF_TOKEN is one, max-total-tokens and token-map are not.
_SECRET_NAME = re.compile(
    r"(?i)(^|[-_.])((api|admin|access|private)[-_]?(api[-_]?)?key|secret|password|passwd"
    r"|credentials?|auth)($|[-_.])|(^|[-_.])token$"
)
#: A word is a token by its prefix only if it begins so and goes on like one: /mnt/disk_1, hf_home and
#: /data/hf_models are none.
_SECRET_TEXT = re.compile(
    r"(?i)(--(?:admin-)?api-key[= ]|bearer\s+)(\S+)"
    r"|((?<![\w./-])(?:hf|sk|ghp)_)(?=\w*\d|\w{20})\w+"
    r"|(://[^/\s:@]+:)([^@/\s]+)(@)"
)

_V = TypeVar("_V")


def is_secret_name(name: str) -> bool:
    """Tell whether a flag or variable of this name holds a secret."""
    return bool(_SECRET_NAME.search(name))


def redact_mapping(values: Mapping[str, _V]) -> dict[str, _V | str]:
    """Return `values` with the value of each secret name hidden, and secrets in other texts."""
    return {name: _redacted(name, value) for name, value in values.items()}


def _redacted(name: str, value: _V) -> _V | str:
    if is_secret_name(name):
        return HIDDEN
    return redact_text(value) if isinstance(value, str) else value


def redact_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with secrets hidden, the word after `--api-key` too."""
    before = ("", *words)
    return [
        HIDDEN if flag.startswith("-") and is_secret_name(flag.lstrip("-")) else redact_text(word)
        for flag, word in zip(before, words, strict=False)
    ]


def redact_text(text: str) -> str:
    """Return `text` with keys, bearer tokens and passwords in addresses hidden."""

    def hide(match: re.Match[str]) -> str:
        before, user, after = match.group(1, 4, 6)
        return (before or match.group(3) or user) + HIDDEN + (after or "")

    return _SECRET_TEXT.sub(hide, text)
