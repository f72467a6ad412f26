"""Takes the values of secrets out of a space file's text, which is kept, shown and sent."""

import re
from collections.abc import Iterator
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from sweeper.redaction import HIDDEN, are_secret, is_secret_name, redact_text, redact_value

#: An anchor or a tag before a value; an alias elsewhere may need it.
_BEFORE = re.compile(r"(?:[&!]\S*\s+)*")
_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*$")


def without_secrets(text: str) -> str:
    """Return the text of a valid space file with each secret value as "***".

    Its other characters, comments and line numbers of what follows on other lines stay.
    """
    hidden = {
        (node.start_mark.index, node.end_mark.index): value
        for node, value in _scalars(YAML(typ="rt", pure=True).compose(text))
        if value != node.value
    }
    for (start, end), value in sorted(hidden.items(), reverse=True):
        old = text[start:end]
        before = _BEFORE.match(old)
        kept = before.group() if before else ""
        # A block of text ends behind its line end, which must stay.
        after = old[len(old.rstrip()) :]
        quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        text = f'{text[:start]}{kept}"{quoted}"{after}{text[end:]}'
    return _COMMENT.sub(lambda found: redact_text(found[0]), text)


def _scalars(root: Any) -> Iterator[tuple[Any, str]]:
    """Yield each value with what it is hidden as, as rows hide it: words of a command as text."""
    waiting: list[tuple[Any, bool, bool]] = [(root, False, False)]
    seen = set()
    while waiting:
        node, secret, words = waiting.pop()
        if (id(node), secret, words) in seen:
            continue
        seen.add((id(node), secret, words))
        if isinstance(node, ScalarNode):
            yield node, HIDDEN if secret else (redact_text if words else redact_value)(node.value)
        elif isinstance(node, SequenceNode):
            after_flag = are_secret([part.value for part in node.value])
            waiting += [
                (part, secret or by_flag, words)
                for part, by_flag in zip(node.value, after_flag, strict=True)
            ]
        elif isinstance(node, MappingNode):
            waiting += [
                (value, secret or is_secret_name(str(key.value)), key.value == "command")
                for key, value in node.value
            ]
