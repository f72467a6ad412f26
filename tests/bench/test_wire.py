"""Chunked answers are taken apart as they come, and the connection stays in use."""

import asyncio
import itertools
import json
import re

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.bench.jobs import Job
from sweeper.bench.sending import Stream, open_session, send
from sweeper.bench.streams import StreamFault
from sweeper.bench.wire import Chunks, StampingHandler
from sweeper.bench.workload import Prompt
from sweeper.clock import Clock

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = [b'data: {"choices": [{"index": 0, "text": "%d"}]}\n\n' % i for i in range(5)]
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


BODY = b"".join(map(chunk, [*EVENTS, DONE]))


class RawServer(asyncio.Protocol):
    """Answers each request with parts of bytes, a moment apart."""

    parts: tuple[bytes, ...] = ()
    hangs_up = False

    def __init__(self, seen: list["RawServer"]) -> None:
        self.requests = 0
        self.buffer = b""
        seen.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, split, body = self.buffer.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if split and length and len(body) >= int(length[1]):
            self.buffer = b""
            self.requests += 1
            self.task = asyncio.get_running_loop().create_task(self.answer())

    async def answer(self) -> None:
        for part in self.parts:
            self.transport.write(part)
            await asyncio.sleep(0.01)
        if self.hangs_up:
            self.transport.close()


async def take(kind: type[RawServer], requests: int = 1) -> tuple[list[Stream], list[RawServer]]:
    """Send requests one after the other; return their streams and the server's connections."""
    seen: list[RawServer] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: kind(seen), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    job = Job(url=url, model="m", workload="w", prompts=())
    streams = []
    async with open_session(job) as session:
        for _ in range(requests):
            stream = Stream(Prompt(id="p"), 0, 0, sent_ns=0, moved_ns=0, body=b"{}")
            await asyncio.wait_for(send(session, url, stream, Clock().now_ns), 10)
            streams.append(stream)
    server.close()
    return streams, seen


def served(*parts: bytes, hangs_up: bool = False) -> type[RawServer]:
    return type("Served", (RawServer,), {"parts": parts, "hangs_up": hangs_up})


@pytest.mark.parametrize("cut", [1, 3, 7, 50, 10_000])
def test_an_answer_cut_anywhere_comes_whole_and_its_connection_is_used_again(cut: int) -> None:
    whole = HEAD + BODY + b"0\r\n\r\n"
    parts = [whole[i : i + cut] for i in range(0, len(whole), cut)]
    for kind in (served(*parts[:40], b"".join(parts[40:])), served(HEAD, *parts[len(HEAD) :])):
        if cut > 1 and kind.parts[0] == HEAD:
            continue
        streams, seen = asyncio.run(take(kind, requests=3))
        for stream in streams:
            assert stream.fault is None, stream.error
            assert b"".join(stream.blocks) == b"".join([*EVENTS, DONE])
            assert len(stream.stamps) == len(stream.blocks)
        assert [connection.requests for connection in seen] == [3]


def test_each_chunk_has_its_own_stamp() -> None:
    kind = served(HEAD, *map(chunk, [*EVENTS, DONE]), b"0\r\n\r\n")
    ((stream,), _) = asyncio.run(take(kind))
    assert stream.blocks == [*EVENTS, DONE]
    assert stream.stamps == sorted(set(stream.stamps))


def test_chunks_that_come_with_the_head_are_stamped_when_they_came() -> None:
    kind = served(HEAD + chunk(EVENTS[0]), *map(chunk, [*EVENTS[1:], DONE]), b"0\r\n\r\n")
    ((stream,), _) = asyncio.run(take(kind))
    assert stream.blocks == [*EVENTS, DONE]


def test_chunks_do_not_go_through_aiohttp(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    original = StampingHandler.take_over

    def noted(self: StampingHandler, *args: object) -> bool:
        taken.append(original(self, *args))  # type: ignore[arg-type]
        return taken[-1]

    monkeypatch.setattr(StampingHandler, "take_over", noted)
    asyncio.run(take(served(HEAD, BODY, b"0\r\n\r\n")))
    assert taken == [True]


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param((BODY, b"0\r\nTrailer: x\r\n\r\n"), id="trailer"),
        pytest.param((BODY.replace(b"\r\ndata", b";ext=1\r\ndata"), b"0\r\n\r\n"), id="extension"),
        pytest.param((BODY, b"0\r\n", b"\r\n"), id="end in two parts"),
        pytest.param((BODY[:-2], b"\r\n0\r\n\r\n"), id="last chunk with the end"),
    ],
)
def test_what_the_standard_allows_is_understood(ends: tuple[bytes, ...]) -> None:
    streams, seen = asyncio.run(take(served(HEAD, *ends), requests=2))
    for stream in streams:
        assert stream.fault is None, stream.error
        assert b"".join(stream.blocks) == b"".join([*EVENTS, DONE])
    assert sum(connection.requests for connection in seen) == 2


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param((HEAD, chunk(EVENTS[0])), id="between chunks"),
        pytest.param((HEAD, chunk(EVENTS[0]), chunk(EVENTS[1])[:9]), id="in a chunk"),
        pytest.param((HEAD, chunk(EVENTS[0]), b"no length\r\n"), id="no chunk"),
        pytest.param((HEAD,), id="after the head"),
    ],
)
def test_a_broken_answer_is_truncated(parts: tuple[bytes, ...]) -> None:
    ((stream,), _) = asyncio.run(take(served(*parts, hangs_up=True)))
    assert stream.fault is StreamFault.TRUNCATED
    assert "the connection broke in the middle" in (stream.error or "")


def test_a_server_that_never_ends_after_done_is_left() -> None:
    ((stream,), _) = asyncio.run(take(served(HEAD, BODY)))
    assert stream.fault is None
    assert b"".join(stream.blocks) == b"".join([*EVENTS, DONE])


def test_a_chunk_of_megabytes_does_not_stop_the_socket() -> None:
    event = b"data: " + json.dumps({"text": "w" * 3_000_000}).encode() + b"\n\n"
    big = chunk(event)
    kind = served(HEAD + big[:1000], *(big[i : i + 200_000] for i in range(1000, len(big), 200_000)),
                  chunk(DONE), b"0\r\n\r\n")  # fmt: skip
    ((stream,), _) = asyncio.run(take(kind))
    assert stream.fault is None, stream.error
    assert stream.blocks[0] == event


def test_an_answer_with_a_length_goes_the_usual_way() -> None:
    body = b"".join([*EVENTS, DONE])
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    ((stream,), _) = asyncio.run(take(served(head, body)))
    assert b"".join(stream.blocks) == body


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.data())
def test_chunks_are_found_however_the_bytes_are_cut(
    pieces: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(map(chunk, pieces)) + b"0\r\n\r\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    chunks = Chunks()
    ends = [0, *cuts, len(whole)]
    found = [chunks.feed(whole[a:b]) for a, b in itertools.pairwise(ends) if a < b]
    assert b"".join(found) == b"".join(pieces)
    assert chunks.ended


def test_the_connector_is_still_what_aiohttp_asks_for_connections() -> None:
    async def check() -> None:
        async with open_session(
            Job(url="http://h", model="m", workload="w", prompts=())
        ) as session:
            connector = session.connector
            assert isinstance(connector, aiohttp.TCPConnector)
            assert isinstance(connector._factory(), StampingHandler)

    asyncio.run(check())
