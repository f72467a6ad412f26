"""The server that clients are compared on: `python -m benchmarks.client_server STREAMS RATE CHUNKS`.

It waits until STREAMS prompts with the word "paced" have come, and then answers all of them at
once: CHUNKS chunks each, RATE a second, or with rate 0 as fast as the client takes them. A chunk
holds the monotonic time in ns at which it was written. What else clients ask for is answered too,
and does not count. On stdout: the port, {"begin_ns"} and {"end_ns"}, a line each; it ends
when its stdin closes.

Each answer says that the connection closes, so a client closes it once it has read the answer to
its end, and the last one to do so ends the run. Else what lies in buffers would pass for read.
"""

import asyncio
import json
import re
import sys
import time
from typing import cast

import uvloop

_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
)
_END = (
    b'data: {"id":"c","object":"text_completion","model":"m","choices":'
    b'[{"index":0,"text":"","finish_reason":"length"}]}\n\n'
)
_USAGE = (
    b'data: {"id":"c","object":"text_completion","model":"m","choices":[],"usage":'
    b'{"prompt_tokens":8,"completion_tokens":%d,"total_tokens":%d}}\n\n'
)
_BEGIN_S = 0.5


class Load:
    """What all streams of one run share.

    Attributes:
        streams: How many begin together.
        rate: Chunks a second of each; 0 for no pace.
        chunks: Chunks of each.
        begun: Set when all have come, and the time to begin is known.
        begin_ns: When they begin.
    """

    def __init__(self, streams: int, rate: int, chunks: int) -> None:
        self.streams, self.rate, self.chunks = streams, rate, chunks
        self.begun = asyncio.Event()
        self.begin_ns = 0
        self._come = self._gone = 0

    def come(self) -> None:
        """Count a stream; the last one starts all."""
        self._come += 1
        if self._come == self.streams:
            self.begin_ns = time.monotonic_ns() + int(_BEGIN_S * 1e9)
            self.begun.set()
            print(json.dumps({"begin_ns": self.begin_ns}), flush=True)

    def gone(self) -> None:
        """Count a stream that its client has read to the end."""
        self._gone += 1
        if self._gone == self.streams:
            print(json.dumps({"end_ns": time.monotonic_ns()}), flush=True)


class Connection(asyncio.Protocol):
    """One connection: requests in, one stream of stamped chunks out."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._buffer = b""
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, _: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()
            self._load.gone()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while True:
            head, split, rest = self._buffer.partition(b"\r\n\r\n")
            if not split:
                return
            length = re.search(rb"(?i)content-length: *(\d+)", head)
            size = int(length[1]) if length else 0
            if len(rest) < size:
                return
            body, self._buffer = rest[:size], rest[size:]
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        if b"paced" in body:
            usage = b"include_usage" in body
            self._task = asyncio.create_task(self._stream(usage=usage))
            self._load.come()
            return
        assert self._transport is not None
        known = {
            "object": "list",
            "data": [{"id": "m", "object": "model"}],
            "id": "c",
            "model": "m",
            "choices": [{"index": 0, "text": "w", "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        said = json.dumps(known).encode()
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (len(said), said)
        )

    async def _stream(self, *, usage: bool) -> None:
        load = self._load
        assert self._transport is not None
        self._transport.write(_HEAD)
        await load.begun.wait()
        await asyncio.sleep((load.begin_ns - time.monotonic_ns()) / 1e9)
        for number in range(load.chunks):
            if load.rate:
                due_ns = load.begin_ns + number * 1_000_000_000 // load.rate
                await asyncio.sleep((due_ns - time.monotonic_ns()) / 1e9)
            elif number % 20 == 0:
                await asyncio.sleep(0)
            await self._may_write.wait()
            self._send(
                b'data: {"id":"cmpl-0123456789","object":"text_completion","model":"m","choices":'
                b'[{"index":0,"text":"%d ","finish_reason":null}]}\n\n' % time.monotonic_ns()
            )
        self._send(_END)
        if usage:
            self._send(_USAGE % (load.chunks, load.chunks + 8))
        self._send(b"data: [DONE]\n\n")
        self._transport.write(b"0\r\n\r\n")
        await asyncio.Event().wait()  # the client closes

    def _send(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(b"%x\r\n%s\r\n" % (len(data), data))


async def serve(load: Load) -> None:
    """Serve until stdin closes; print the port."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(load), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


async def main() -> None:
    """Serve one run."""
    await serve(Load(*(int(word) for word in sys.argv[1:4])))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
