"""Stamps a chunked answer as its bytes come in, before anything else looks at them.

    socket -> StampingHandler.data_received -> (stamp, piece) at once
                                    aiohttp's parser sees the head and the end of the answer

aiohttp hands each block through a parser and a stream to a task that it wakes: several times the
work of taking the bytes down, at the moment when the next ones arrive. So once the head of a
chunked answer is read, its chunks are taken apart here; the parser gets the last one, which ends
the answer for it too, and keeps the connection in use. Whatever is unlike that, such as an answer
with a length, goes aiohttp's way; so does everything where its insides are not as they were.
"""

import functools
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

_END = b"0\r\n\r\n"


class Chunks:
    """Takes a chunked body apart (RFC 9112, section 7.1); extensions and trailers are skipped."""

    def __init__(self) -> None:
        self.ended = False
        self._rest = b""

    @property
    def is_between(self) -> bool:
        """Whether a new chunk comes next."""
        return not self._rest

    def feed(self, block: bytes) -> bytes:
        """Take the next bytes and return the data of the chunks that they complete.

        Raises:
            ValueError: That is no chunked body.
        """
        if self._rest:
            block, self._rest = self._rest + block, b""
        found: list[bytes] = []
        at = 0
        while at < len(block):
            line = block.find(b"\r\n", at)
            if line < 0:
                break
            size = int(block[at:line].partition(b";")[0], 16)
            begin, end = line + 2, line + 2 + size
            if size == 0:
                self.ended = block.find(b"\r\n\r\n", at) >= 0
                if self.ended:
                    return b"".join(found)
                break
            if end + 2 > len(block):
                break
            found.append(block[begin:end])
            at = end + 2
        self._rest = block[at:]
        return found[0] if len(found) == 1 else b"".join(found)


class StampingHandler(ResponseHandler):
    """aiohttp's protocol of a connection, which can be asked to give pieces out at once.

    Args:
        loop: The loop.
        now_ns: The clock of the stamps.
    """

    def __init__(self, loop: Any, now_ns: Callable[[], int]) -> None:
        super().__init__(loop)
        self._now_ns = now_ns
        self._head: list[tuple[bytes, int]] | None = None
        self._chunks: Chunks | None = None
        self._on_piece: Callable[[bytes, int], None] | None = None
        self._on_end: Callable[[], None] | None = None
        self._content: aiohttp.StreamReader | None = None
        self._in_step = True

    def set_response_params(self, **params: Any) -> None:
        """Begin another answer."""
        super().set_response_params(**params)
        self._head, self._chunks, self._on_end = [], None, None

    def take_over(
        self,
        content: aiohttp.StreamReader,
        on_piece: Callable[[bytes, int], None],
        on_end: Callable[[], None],
    ) -> bool:
        """Give out the pieces of a chunked answer whose head has come, from its first on.

        Args:
            content: aiohttp's stream of it, which nobody else reads.
            on_piece: Told each piece with its stamp.
            on_end: Told when the answer has ended, or the connection.

        Returns:
            Whether that is done; if not, nothing was given out.
        """
        head, self._head = self._head or [], None
        skip = b"".join(block for block, _ in head).find(b"\r\n\r\n") + 4
        chunks = Chunks()
        pieces = []
        try:
            for block, stamp in head:
                body, skip = block[skip:], max(skip - len(block), 0)
                if body and (piece := chunks.feed(body)):
                    pieces.append((piece, stamp))
        except ValueError:
            return False
        if chunks.ended or self.transport is None:
            return False
        self._chunks, self._on_piece, self._on_end = chunks, on_piece, on_end
        self._content, self._in_step = content, True
        for piece, stamp in pieces:
            on_piece(piece, stamp)
        return True

    def data_received(self, data: bytes) -> None:
        """Take bytes; the parser gets them until a chunk has ended, and then the last chunk."""
        stamp = self._now_ns()
        chunks, on_piece = self._chunks, self._on_piece
        if not data:  # aiohttp has made room for what its parser holds back
            super().data_received(data)
            return
        if chunks is None or on_piece is None:
            if self._head is not None:
                self._head.append((data, stamp))
            super().data_received(data)
            return
        if self._in_step and chunks.is_between:
            self._in_step = False
        try:
            piece = chunks.feed(data)
        except ValueError:
            chunks.ended = True
            if self.transport is not None:
                self.transport.abort()
            return
        if piece:
            on_piece(piece, stamp)
        if not self._in_step and not chunks.ended:  # as nearly always
            return
        if self._in_step:
            super().data_received(data)
            if self._content is not None and self._content.exception() is None:
                self._content.read_nowait()  # else a full stream would stop the socket
        else:
            super().data_received(_END)
        if chunks.ended:
            self._end()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the answer with the connection."""
        super().connection_lost(exc)
        self._end()

    def _end(self) -> None:
        told, self._on_end, self._chunks = self._on_end, None, None
        if told is not None:
            told()


class StampingConnector(aiohttp.TCPConnector):
    """A connector without a limit whose connections can stamp."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        # Idle connections are dropped before any usual server drops them (uvicorn: 5 s).
        super().__init__(limit=0, keepalive_timeout=1.0)
        made: Any = functools.partial(StampingHandler, loop=self._loop, now_ns=now_ns)
        self._factory = made


def handler_of(response: aiohttp.ClientResponse) -> StampingHandler | None:
    """Return the handler of a chunked answer that has not ended; None of any other."""
    connection = response.connection
    protocol = None if connection is None else connection.protocol
    chunked = response.headers.get("Transfer-Encoding", "").lower() == "chunked"
    plain = response.headers.get("Content-Encoding", "identity") == "identity"
    return protocol if isinstance(protocol, StampingHandler) and chunked and plain else None
