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
_BEARER = re.compile(r"(?i)(bearer\s+)(?:\S+)")
#: A prefix counts where a word begins: "mask_size", "hf_config" and "/mnt/disk_1" hold no key. In a
#: value it may be a name as well, "hf_llama3", so it counts in running text only.
_GUESS = re.compile(
    r"(?i)((?<![\w/.-])(?:sk|ghp)_)(?:\S+)"
    r"|((?<![\w/.-])hf_)(?:(?=[a-z]*\d)[a-z0-9]+(?![\w./-]))"
)
#: What cannot be anything else, so that it is hidden even in values that tell settings apart.
_CERTAIN = re.compile(
    r"(://[^/\s:@]+:)(?:[^@/\s]+)(?=@)|((?<![A-Za-z0-9_])(?:hf_|ghp_|sk-))(?:[A-Za-z0-9]{20,})"
)
#: Without one of these nothing in a text is named, so that it cannot be of a secret name.
_PARTS = re.compile(r"[=:\s]")

_V = TypeVar("_V")


def is_secret_name(name: str) -> bool:
    """Tell whether a flag or variable of this name holds a secret."""
    return bool(_SECRET_NAME.search(name))


def are_secret(words: Sequence[object]) -> list[bool]:
    """Tell of each word of a command line whether it is a secret by the flag before it."""
    return [
        isinstance(flag, str) and flag.startswith("-") and is_secret_name(flag.lstrip("-"))
        for flag in (None, *words)[:-1]
    ]


def redact_mapping(values: Mapping[str, _V]) -> dict[str, _V | str]:
    """Return `values` with those of secret names hidden, and passwords in addresses."""
    return {
        name: HIDDEN if is_secret_name(name) else _redacted(value)
        for name, value in values.items()
    }


def redact_value(value: str) -> str:
    """Return a setting's value without what can only be a secret, so that settings stay apart.

    Rows, the kept space file, launch keys and commands all hide by it, so that they still agree.
    """
    value = _CERTAIN.sub(_hide, value)
    # Asked for each value of each point of a space, of which few have a part that says its name.
    if _PARTS.search(value):
        value = _BEARER.sub(_hide, value)
        for pattern in (_FLAG, _NAMED):
            value = pattern.sub(_hide_value, value)
    return value


def _redacted(value: object) -> Any:
    if isinstance(value, tuple):
        secret = are_secret(value)
        return tuple(HIDDEN if s else _redacted(v) for v, s in zip(value, secret, strict=True))
    return redact_value(value) if isinstance(value, str) else value


def redact_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line, with secrets hidden."""
    secret = are_secret(words)
    return [HIDDEN if s else redact_text(word) for word, s in zip(words, secret, strict=True)]


def redact_text(text: str) -> str:
    """Return `text` with keys, tokens and passwords hidden."""
    return redact_value(_GUESS.sub(_hide, text))


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
