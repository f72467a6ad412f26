"""Server-sent events out of bytes that are cut anywhere. Pure."""

import re

_DATA, _BLANK = b"data: ", b"\n\n"
_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventStream:
    """Splits a byte stream into events, by the rules of the HTML standard, section 9.2.6.

    Lines end in LF, CRLF or CR; comments and fields other than `data` are skipped; the data lines
    of one event are joined by LF. Unlike a browser it also gives out an event that the end of the
    stream cut the blank line from.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._data: list[bytes] = []

    def feed(self, block: bytes) -> list[bytes]:
        """Take the next bytes and return the data of each event that they complete."""
        if (
            not self._data
            and (not self._parts or self._parts == [b""])
            and block.startswith(_DATA)
            and block.endswith(_BLANK)
            and block.count(b"\n") == 2
            and b"\r" not in block
        ):  # one whole event, as most blocks are
            return [block[len(_DATA) : -len(_BLANK)]]
        self._parts.append(block)
        if b"\n" not in block and b"\r" not in block and not self._held_cr():
            return []
        buffer = b"".join(self._parts)
        held = b""
        if buffer.endswith(b"\r"):  # whether an LF follows is not known yet
            buffer, held = buffer[:-1], b"\r"
        *lines, rest = _LINE_END.split(buffer)
        self._parts = [rest + held]
        events = []
        for line in lines:
            if line:
                self._take_line(line)
            elif self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events

    def close(self) -> list[bytes]:
        """Return the data of the event that the stream ended in, if any."""
        self._take_line(b"".join(self._parts).rstrip(b"\r"))
        self._parts = []
        events = [b"\n".join(self._data)] if self._data else []
        self._data = []
        return events

    def _held_cr(self) -> bool:
        return len(self._parts) > 1 and self._parts[-2].endswith(b"\r")

    def _take_line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value[1:] if value.startswith(b" ") else value)
