"""Small model servers with known timing, and one for each fault, on a port of their own."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from sweeper.bench.measure import measure
from sweeper.bench.process import ClientProcess
from sweeper.clock import Clock
from sweeper.records import Limits, Measurement, RequestTiming, Workload

TEXT = "one word after another and then the next "


SHORT = Workload(name="short", max_tokens=9, warmup=0)


def event(value: object) -> bytes:
    """Return a value as a server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


class PlainServer:
    """Answers as SGLang does: the first token after `ttft_s`, then `per_chunk` each `step_s`."""

    ttft_s = 0.06
    step_s = 0.02
    per_chunk = 1

    def __init__(self) -> None:
        self.flushes = 0
        self.open_streams = 0
        self.most_streams = 0
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []

    async def answer(self, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        """Yield the pieces of one answer."""
        tokens = int(body.get("max_tokens") or body["sampling_params"]["max_new_tokens"])
        start = asyncio.get_running_loop().time()
        sent = step = 0
        if path == "/v1/chat/completions":
            yield event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        while sent < tokens:
            due = start + self.ttft_s + step * self.step_s
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            new = 1 if sent == 0 else min(self.per_chunk, tokens - sent)
            sent, step = sent + new, step + 1
            for piece in self.pieces(path, sent, new, tokens, step - 1):
                yield piece
        for piece in self.tail(path, body, tokens):
            yield piece

    def pieces(self, path: str, sent: int, new: int, tokens: int, steps: int) -> list[bytes]:
        """Return what is sent after one step."""
        finish = "length" if sent == tokens else None
        if path == "/generate":
            meta: dict[str, Any] = {
                "prompt_tokens": 20,
                "cached_tokens": 0,
                "completion_tokens": sent,
                "finish_reason": {"type": finish, "length": tokens} if finish else None,
            }
            if finish and self.per_chunk > 1:
                histogram = [0] * (self.per_chunk - 1) + [steps]
                meta |= {"spec_verify_ct": steps, "spec_correct_drafts_histogram": histogram}
                meta["spec_num_proposed_drafts"] = steps * self.per_chunk
            return [event({"text": "w " * sent, "output_ids": [7] * sent, "meta_info": meta})]
        text = "w " * new
        part = {"delta": {"content": text}} if "chat" in path else {"text": text}
        return [event({"choices": [{"index": 0, **part, "finish_reason": finish}], "usage": None})]

    def tail(self, path: str, body: dict[str, Any], tokens: int) -> list[bytes]:
        """Return what is sent after the last step."""
        if path == "/generate" or not body.get("stream_options", {}).get("include_usage"):
            return [DONE]
        usage = {"prompt_tokens": 20, "completion_tokens": tokens, "total_tokens": 20 + tokens}
        return [event({"choices": [], "usage": usage}), DONE]

    async def flush(self, request: web.Request) -> web.StreamResponse:
        """Answer /flush_cache."""
        self.flushes += 1
        return web.Response(text="Cache flushed.\n")

    async def models(self, request: web.Request) -> web.StreamResponse:
        """Answer /v1/models."""
        return web.json_response({"data": [{"id": "plain-model"}]})

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Answer the generation routes."""
        body = await request.json()
        self.bodies.append(body)
        self.paths.append(request.path)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self.open_streams += 1
        self.most_streams = max(self.most_streams, self.open_streams)
        try:
            await response.prepare(request)
            async for piece in self.answer(request.path, body):
                await response.write(piece)
            await response.write_eof()
        except ConnectionError:
            pass
        finally:
            self.open_streams -= 1
        return response

    def app(self) -> web.Application:
        """Return the routes."""
        app = web.Application()
        for path in ("/generate", "/v1/completions", "/v1/chat/completions"):
            app.router.add_post(path, self.stream)
        app.router.add_get("/flush_cache", self.flush)
        app.router.add_get("/v1/models", self.models)
        return app


class ServerWithoutUsage(PlainServer):
    """Counts no tokens on the OpenAI routes."""

    def tail(self, path: str, body: dict[str, Any], tokens: int) -> list[bytes]:
        return [DONE]


class ServerThatResets(PlainServer):
    """Breaks the connection of each `every`-th request in the middle."""

    every = 1

    async def stream(self, request: web.Request) -> web.StreamResponse:
        if (len(self.bodies) + 1) % self.every:
            return await super().stream(request)
        self.bodies.append(await request.json())
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(self.pieces(request.path, 1, 1, 9, 0)[0])
        assert request.transport is not None
        request.transport.abort()
        return response


class ServerThatEndsEarly(PlainServer):
    """Ends the stream in order but without a finish."""

    async def answer(self, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        yield self.pieces(path, 1, 1, 9, 0)[0]


class ServerThatSendsAnError(PlainServer):
    """Sends an error in the middle of a stream whose status is 200."""

    async def answer(self, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        yield self.pieces(path, 1, 1, 9, 0)[0]
        yield event({"error": {"message": "scheduler died", "code": 500}})
        yield DONE


class ServerThatRefuses(PlainServer):
    """Answers 400, with a key in the text."""

    async def stream(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        return web.json_response({"error": "bad key sk_abcdef"}, status=400)


class ServerThatHangs(PlainServer):
    """Sends one token and then nothing; `well` requests before are answered."""

    well = 0

    async def answer(self, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        if len(self.bodies) <= self.well:
            async for piece in super().answer(path, body):
                yield piece
            return
        yield self.pieces(path, 1, 1, 9, 0)[0]
        await asyncio.sleep(3600)


class ServerThatOnlyComments(PlainServer):
    """Keeps the connection alive by comments and sends no token."""

    async def answer(self, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        while True:
            yield b": still here\n\n"
            await asyncio.sleep(0.05)


class ServerThatWaitsForAll(PlainServer):
    """Answers nobody before `all_streams` requests were open at once."""

    all_streams = 1

    def __init__(self) -> None:
        super().__init__()
        self.all_here = asyncio.Event()

    async def answer(self, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        if self.most_streams >= self.all_streams:
            self.all_here.set()
        await self.all_here.wait()
        async for piece in super().answer(path, body):
            yield piece


class ServerBusyForAWhile(PlainServer):
    """Refuses the first two flushes, as SGLang does while requests are pending."""

    async def flush(self, request: web.Request) -> web.StreamResponse:
        self.flushes += 1
        return web.Response(status=400 if self.flushes < 3 else 200, text="pending requests")


class ServerBusyForever(PlainServer):
    """Refuses every flush."""

    async def flush(self, request: web.Request) -> web.StreamResponse:
        self.flushes += 1
        return web.Response(status=400, text="pending requests")


class ServerWithPrefixCache(PlainServer):
    """Answers at once what it has seen the beginning of."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.hits = 0

    async def answer(self, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        start = body["text"][:64]
        self.hits += start in self.seen
        self.seen.add(start)
        async for piece in super().answer(path, body):
            yield piece


@contextmanager
def serving(server: PlainServer) -> Iterator[str]:
    """Run `server` in a thread and give its address."""
    loop = asyncio.new_event_loop()
    started: list[str] = []
    ready = threading.Event()
    stop = asyncio.Event()

    async def run() -> None:
        runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        host, port = runner.addresses[0][:2]
        started.append(f"http://{host}:{port}")
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert ready.wait(30)
    try:
        yield started[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


def run(
    client: ClientProcess, server: PlainServer, workload: Workload = SHORT, **more: Any
) -> tuple[Measurement, tuple[RequestTiming, ...]]:
    """Measure a server; `more` stands for what `measure` is given otherwise."""
    given: dict[str, Any] = {
        "model": "plain-model",
        "gpus": 2,
        "clock": Clock(),
        "limits": Limits(progress_s=60.0, probe_s=30.0),
        "salt": "s",
        **more,
    }
    with serving(server) as url:
        return measure(client, url=url, workload=workload, **given)
