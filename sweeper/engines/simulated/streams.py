"""Streams, and SGLang's own route /generate.

A stream sends one chunk a verify step, and where the client is slow the newest state only: a
chunk then holds several steps. The last chunk of `/generate` has the acceptance.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from sweeper.engines.simulated.job import Job
from sweeper.engines.simulated.server import SERVER, BadRequest, Malformed, Server

_GENERATE_DEFAULT = 128


@dataclass(slots=True)
class Cut:
    """What of a job a stream has sent."""

    tokens: int = 0
    chars: int = 0


async def generate(request: web.Request) -> web.StreamResponse:
    """Answer `/generate`: cumulative text and ids, or deltas if the flags say so."""
    server, body = request.app[SERVER], await read_body(request)
    params = body.get("sampling_params") or {}
    try:
        prompt, tokens = read_prompt(body.get("text"), body.get("input_ids"))
        job = server.job(
            prompt,
            prompt_tokens=tokens,
            max_tokens=int(params.get("max_new_tokens") or _GENERATE_DEFAULT),
            ignore_eos=bool(params.get("ignore_eos")),
            temperature=float(params.get("temperature", 1.0)),
            rid=body.get("rid"),
        )
    except BadRequest as e:
        if body.get("stream"):
            return await _refused_stream(request, e)
        raise
    deltas = bool(server.flags["incremental_streaming_output"])

    def piece(cut: Cut) -> bytes:
        text = job.text[cut.chars :] if deltas else job.text
        ids = ",".join(job.ids.split(",")[cut.tokens :]) if deltas else job.ids
        return _event_text(
            f'{{"text":{json.dumps(text)},"output_ids":[{ids}],'
            f'"meta_info":{json.dumps(server.meta_info(job))}}}'
        )

    if body.get("stream"):
        return await stream(request, job, [piece], list)
    await finished(server, job)
    ids = [int(i) for i in job.ids.split(",")] if job.ids else []
    return web.json_response(
        {"text": job.text, "output_ids": ids, "meta_info": server.meta_info(job)}
    )


async def _refused_stream(request: web.Request, refusal: BadRequest) -> web.StreamResponse:
    """Answer as this route does, unlike OpenAI's: 200, and the error as the only event."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    error = {
        "message": str(refusal),
        "type": "invalid_request_error",
        "code": 400,
        "retryable": False,
    }
    await response.write(event({"error": error}))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


async def stream(
    request: web.Request,
    job: Job,
    pieces: list[Callable[[Cut], bytes]],
    tail: Callable[[], list[bytes]],
) -> web.StreamResponse:
    """Stream a job: `pieces[0]` first, `pieces[-1]` at each change, then `tail` and [DONE]."""
    server = request.app[SERVER]
    server.streams += 1
    number = server.streams
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    server.scheduler.submit(job)
    middle = max(job.limit // 2, 1)
    cut = Cut()
    try:
        async for _ in _news(server, job):
            if not response.prepared:
                await response.prepare(request)
                for opening in pieces[:-1]:
                    await response.write(opening(cut))
            if server.faults.strikes("truncated_stream", number) and job.produced >= middle:
                return _cut_off(server, request, job, response)
            if server.faults.strikes("error_in_stream", number) and job.produced >= middle:
                await response.write(event({"error": _error("Internal server error", 500)}))
                server.scheduler.abort(job.rid)
                break
            data = pieces[-1](cut)
            cut = Cut(job.produced, len(job.text))
            await response.write(data)
        else:
            for closing in tail():
                await response.write(closing)
        await response.write(b"data: [DONE]\n\n")
        if "slow_close" in server.faults:
            await asyncio.sleep(server.clock.real_s(server.faults.argument("slow_close", 5.0)))
        await response.write_eof()
    except (ConnectionError, asyncio.CancelledError):
        server.scheduler.abort(job.rid)
        raise
    return response


async def _news(server: Server, job: Job) -> AsyncIterator[None]:
    """Yield at each change that adds tokens or ends the job; coalesced while not asked."""
    sent = 0
    ended = False
    every = int(server.flags["stream_interval"])
    while not ended:
        await job.news.wait()
        job.news.clear()
        # Taken before the yield: whoever asks may take long, and the end must be told once more.
        ended = job.finish is not None
        if ended or job.produced - sent >= every or sent == 0 < job.produced:
            sent = job.produced
            yield


def _cut_off(
    server: Server, request: web.Request, job: Job, response: web.StreamResponse
) -> web.StreamResponse:
    """Break the connection without the last chunk, as a dying server does."""
    server.scheduler.abort(job.rid)
    if request.transport is not None:
        request.transport.abort()
    return response


async def finished(server: Server, job: Job) -> None:
    server.scheduler.submit(job)
    async for _ in _news(server, job):
        pass


async def read_body(request: web.Request) -> dict[str, Any]:
    """Return the JSON body, after the load is done."""
    await request.app[SERVER].loaded.wait()
    try:
        body = await request.json()
    except ValueError as e:
        raise Malformed(f"JSON decode error: {e}") from None
    # SGLang takes a body of any other content type for bytes.
    if not isinstance(body, dict) or not request.content_type.endswith("json"):
        raise Malformed("Input should be a valid dictionary")
    return body


def read_prompt(text: object, ids: object) -> tuple[str, int | None]:
    """Return the prompt as text and, where it came as ids, its length."""
    if isinstance(text, list) and len(text) == 1:
        text = text[0]
    if isinstance(text, str) and text:
        return text, None
    if isinstance(ids, list) and ids and all(isinstance(i, int) for i in ids):
        return "".join(f"{i % 10000:04d}" for i in ids), len(ids)
    raise BadRequest("one prompt is expected: a text, or a list of token ids")


def _error(message: str, code: int) -> dict[str, object]:
    kind = "BadRequestError" if code == 400 else "InternalServerError"
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def event(content: Mapping[str, object]) -> bytes:
    return _event_text(json.dumps(content, separators=(",", ":")))


def _event_text(text: str) -> bytes:
    return f"data: {text}\n\n".encode()
