"""What a record's docstring says of each field, so that it is written once; pure."""

import inspect
import re

_FIELD = re.compile(r"^    (\w+): (.*)$")


def field_words(record: type) -> dict[str, str]:
    """Return field name -> the words under "Attributes:" of the record's docstring."""
    _, _, rest = (inspect.getdoc(record) or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    name = None
    for line in rest.splitlines():
        if match := _FIELD.match(line):
            name = match.group(1)
            found[name] = match.group(2)
        elif name and line.startswith("        "):
            found[name] += f" {line.strip()}"
        elif line.strip():
            break
    return found
