"""One streaming request: sent, stamped as its bytes arrive, kept for reading later.

aiohttp as it is set here has no limit on connections (its own is 100) and none on a request's
total time (its own is 300 s).
"""

import asyncio
import contextlib
import errno
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import aiohttp

from sweeper.bench.jobs import Job
from sweeper.bench.streams import StreamFault
from sweeper.bench.wire import StampingConnector, StampingHandler, handler_of
from sweeper.bench.workload import Prompt
from sweeper.clock import Clock

#: What a server has after [DONE] to end the response, so that the connection can be used again.
_END_S = 0.25
_TAIL = 24
_DONE_ENDS = (b"\ndata: [DONE]", b"\ndata:[DONE]")


@dataclass(slots=True, eq=False)
class Stream:
    """One request on its way; stamps are engine time from the clock's own origin.

    Attributes:
        index: Its place in the pass.
        sent_ns: When its headers were written; before that, when it was made.
        moved_ns: When it was sent or last brought anything but a comment.
        blocks: Bytes as they arrived.
        stamps: When each block did.
        abandoned: Whether it was ended for no fault of its own, and does not count.
    """

    prompt: Prompt
    repeat: int
    index: int
    sent_ns: int
    moved_ns: int
    body: bytes = b""
    blocks: list[bytes] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    abandoned: bool = False
    fault: StreamFault | None = None
    error: str | None = None

    def fail(self, fault: StreamFault, error: str) -> None:
        """Note what broke it; the first cause counts."""
        if self.fault is None:
            self.fault, self.error = fault, error


def open_session(job: Job) -> aiohttp.ClientSession:
    """Return a session for one job; the caller closes it."""
    headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
    if job.api_key:
        headers["Authorization"] = f"Bearer {job.api_key}"
    trace = aiohttp.TraceConfig()

    async def on_sent(
        _session: aiohttp.ClientSession,
        context: SimpleNamespace,
        _params: aiohttp.TraceRequestHeadersSentParams,
    ) -> None:
        if (mark := context.trace_request_ctx) is not None:
            mark()

    trace.on_request_headers_sent.append(on_sent)
    return aiohttp.ClientSession(
        headers=headers,
        connector=StampingConnector(stamps(job.time_scale)),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=30.0),
        trace_configs=[trace],
    )


def stamps(time_scale: float) -> Callable[[], int]:
    """Return what reads engine time; the machine's own clock where the two are one."""
    return time.monotonic_ns if time_scale == 1 else Clock(time_scale).now_ns


async def send(
    session: aiohttp.ClientSession, url: str, stream: Stream, now_ns: Callable[[], int]
) -> None:
    """Send one request and take in its answer; what breaks it is noted in `stream`."""
    headers_came = False

    def mark_sent() -> None:
        stream.sent_ns = stream.moved_ns = now_ns()

    try:
        async with session.post(url, data=stream.body, trace_request_ctx=mark_sent) as response:
            headers_came = True
            if response.status != 200:
                said = (await response.content.read(300)).decode("utf-8", "replace")
                stream.fail(StreamFault.REFUSED, f"HTTP {response.status}: {said}")
                return
            handler = handler_of(response)
            if handler is not None and await _taken(stream, response, handler):
                return
            next_block, tail = response.content.readany, b""
            while block := await next_block():
                stamp = now_ns()
                stream.blocks.append(block)
                stream.stamps.append(stamp)
                if block[:1] != b":" or b"data:" in block:
                    stream.moved_ns = stamp
                tail = (tail + block)[-24:]
                if tail.rstrip(b"\r\n").replace(b"\r", b"\n").endswith(_DONE_ENDS):
                    with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
                        async with asyncio.timeout(_END_S):
                            await next_block()
                    return
    except aiohttp.ClientConnectorError as error:
        out_of_files = error.os_error.errno in (errno.EMFILE, errno.ENFILE)
        fault = StreamFault.CLIENT if out_of_files else StreamFault.CONNECT
        stream.fail(fault, str(error))
    except aiohttp.ConnectionTimeoutError as error:
        stream.fail(StreamFault.CONNECT, str(error))
    except (aiohttp.ClientError, OSError) as error:
        where = "in the middle" if headers_came else "before an answer"
        said = str(error) or type(error).__name__
        stream.fail(StreamFault.TRUNCATED, f"the connection broke {where}: {said}")


async def _taken(
    stream: Stream, response: aiohttp.ClientResponse, handler: StampingHandler
) -> bool:
    """Take in an answer as its chunks come; False if it cannot be taken so.

    Raises:
        aiohttp.ClientError: The connection broke before its end.
    """
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ends = False
    tail = b""

    def on_piece(piece: bytes, stamp: int) -> None:
        nonlocal tail, ends
        stream.blocks.append(piece)
        stream.stamps.append(stamp)
        if piece[:1] != b":" or b"data:" in piece:
            stream.moved_ns = stamp
        tail = piece[-_TAIL:] if len(piece) >= _TAIL else (tail + piece)[-_TAIL:]
        if b"[DONE]" in tail and not over.done():
            ends = True
            over.set_result(None)

    def on_end() -> None:
        if not over.done():
            over.set_result(None)

    if not handler.take_over(response.content, on_piece, on_end):
        return False
    await over
    if ends and not response.content.is_eof():
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(_END_S):
                await response.content.read()
        return True
    broken = response.content.exception()
    if isinstance(broken, aiohttp.ClientError | OSError):
        raise broken
    return True
