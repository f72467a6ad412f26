"""Cuts the bytes of a log into lines, in constant memory, wherever the bytes were cut."""

import re
from collections.abc import Iterator

#: What is kept of the two ends of a long line; the line of all server arguments has 15 kB.
_HEAD, _TAIL = 28_672, 4096

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-Z\\-_])")
_ENDS = re.compile(rb"[\r\n]")
#: A rank's message may follow a progress bar without a line feed between them.
_STAMP = re.compile(r"(?=\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]\n]{0,60}\] )")
_PREFIX = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?(?P<rank>[^\]]{0,60})\] ?")


class LineCutter:
    """Yields whole lines of a stream of bytes; a progress bar's returns end lines too."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[str]:
        """Take the next bytes and yield the lines that they end."""
        start = 0
        for end in _ENDS.finditer(data):
            self._append(data[start : end.start()])
            start = end.end()
            yield from self.rest()
            self._pending.clear()
        self._append(data[start:])

    def rest(self) -> Iterator[str]:
        """Yield what is pending as if it were ended; it stays pending."""
        if not self._pending:
            return
        text = self._pending.decode("utf-8", errors="replace")
        if "\x1b" in text:
            text = _ANSI.sub("", text)
        if "[20" in text[1:]:
            yield from (part for part in _STAMP.split(text) if part)
        else:
            yield text

    def _append(self, data: bytes) -> None:
        pending = self._pending
        pending += data
        if len(pending) > _HEAD + _TAIL:
            del pending[_HEAD : len(pending) - _TAIL]


def bare_text(line: str) -> tuple[str, str]:
    """Return a line's rank ("TP0", "DP0 TP1", "" for the parent) and its text."""
    match = _PREFIX.match(line)
    if match is None:
        return "", line
    return match["rank"].strip(), line[match.end() :]
