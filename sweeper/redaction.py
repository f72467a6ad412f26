"""Keeps secrets out of everything that is stored, printed or shown.

Hiding again what was hidden changes nothing, and a text and its hidden form hide to the same: so
stored rows keep the identity of the launch that they are of.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

HIDDEN = "***"

#: "token" counts only as the last word: HF_TOKEN is one, max-total-tokens and token-map are not.
_SECRET_NAME = re.compile(
    r"(?i)(^|[-_.])((api|admin|access|private)[-_]?(api[-_]?)?key|secret|password|passwd"
    r"|credentials?|auth)($|[-_.])|(^|[-_.])token$"
)
#: In running text a token is a secret only of something: logs speak of eos_token and #new-token.
_ANY_TOKEN = re.compile(r"(?i)token$")
_SECRET_TOKEN = re.compile(
    r"^[A-Z][A-Z0-9_]*_TOKEN$|(?i:(^|[-_.])(hf|hub|api|auth|access|bearer|refresh)[-_.]?token$)"
)
_VALUE = r"""("[^"\n]{1,500}"|'[^'\n]{1,500}'|[^\s,;()\[\]{}'"]+)"""
#: name=value, name: value, "name": "value". It begins where a word does, so that a line of a
#: megabyte is walked once.
_NAMED = re.compile(rf"""(?<![\w.-])([A-Za-z][\w.-]*)(["']?[ \t]*[=:][ \t]*){_VALUE}""")
#: --name value, --name=value, and the same as a list.
_FLAG = re.compile(rf"""(?<![\w-])--([A-Za-z][\w-]*)(["']?(?:=|,?[ \t]+)){_VALUE}""")
_NO_SECRET = re.compile(r"(?i)^['\"]?(none|null|true|false|\*+|-.*)['\"]?$")
#: A prefix counts where a word begins: "mask_size", "hf_config" and "/mnt/disk_1" hold no key.
_KEY = re.compile(
    r"(?i)(bearer\s+|(?<![\w/.-])(?:sk|ghp)_)(?:\S+)"
    r"|((?<![\w/.-])hf_)(?:(?=[a-z]*\d)[a-z0-9]+(?![\w./-]))"
)
#: What cannot be anything else, so that it is hidden even in values that tell settings apart.
_CERTAIN = re.compile(
    r"(://[^/\s:@]+:)(?:[^@/\s]+)(?=@)|((?<![A-Za-z0-9_])(?:hf_|ghp_|sk-))(?:[A-Za-z0-9]{20,})"
)

_V = TypeVar("_V")


def is_secret_name(name: str) -> bool:
    """Tell whether a flag or variable of this name holds a secret."""
    return bool(_SECRET_NAME.search(name))


def is_secret_flag(word: str) -> bool:
    """Tell whether the word after this one in a command line is a secret."""
    return word.startswith("-") and is_secret_name(word.lstrip("-"))


def redact_mapping(values: Mapping[str, _V]) -> dict[str, _V | str]:
    """Return `values` with those of secret names hidden, and passwords in addresses."""
    return {
        name: HIDDEN if is_secret_name(name) else _redacted(value)
        for name, value in values.items()
    }


def redact_value(value: str) -> str:
    """Return a setting's value without what can only be a secret, so that settings stay apart."""
    return _CERTAIN.sub(_hide, value)


def _redacted(value: object) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_redacted, value))
    return redact_value(value) if isinstance(value, str) else value


def redact_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line, with secrets hidden."""
    found = [redact_text(word) for word in words]
    for index, word in enumerate(words[:-1]):
        if is_secret_flag(word):
            found[index + 1] = HIDDEN
    return found


def redact_text(text: str) -> str:
    """Return `text` with keys, tokens and passwords hidden."""
    for pattern in (_KEY, _CERTAIN):
        text = pattern.sub(_hide, text)
    for pattern in (_FLAG, _NAMED):
        text = pattern.sub(_hide_value, text)
    return text


def _hide_value(match: re.Match[str]) -> str:
    name, value = match[1], match[3]
    if not _is_secret_in_text(name) or _NO_SECRET.match(value):
        return match[0]
    quote = value[0] if value[0] in "\"'" else ""
    return match[0].removesuffix(value) + f"{quote}{HIDDEN}{quote}"


def _is_secret_in_text(name: str) -> bool:
    if _ANY_TOKEN.search(name) and not _SECRET_TOKEN.search(name):
        return False
    return is_secret_name(name)


def _hide(match: re.Match[str]) -> str:
    return next(part for part in match.groups() if part) + HIDDEN
