"""The routes beside generation, and what all routes share: keys, errors, access lines."""

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable

from aiohttp import web

from sweeper.engines.simulated.job import Job
from sweeper.engines.simulated.metrics import exposition
from sweeper.engines.simulated.openai import chat, completions
from sweeper.engines.simulated.server import SERVER, BadRequest, Malformed, Server
from sweeper.engines.simulated.streams import generate

#: /health polls for output this often and gives up after that long (SGLANG_HEALTH_CHECK_TIMEOUT).
_HEALTH_POLL_S = 1.0
_HEALTH_LIMIT_S = 20.0
_OPEN = ("/health", "/ready", "/metrics")

_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. (When there are running or "
    "waiting requests, the operation will not be performed.)\n"
)
_NOT_FLUSHED = "Flush cache failed.\n"


def build_app(server: Server) -> web.Application:
    """Return the web application of one server."""
    app = web.Application(middlewares=[_guard], client_max_size=64 * 2**20)
    app[SERVER] = server
    for path in ("/health", "/health_generate"):
        app.router.add_get(path, _health, allow_head=False)
    for path in ("/server_info", "/get_server_info"):
        app.router.add_get(path, _server_info)
    for path in ("/model_info", "/get_model_info"):
        app.router.add_get(path, _model_info)
    for method in ("GET", "POST"):
        app.router.add_route(method, "/flush_cache", _flush_cache)
    app.router.add_get("/ready", _ready)
    app.router.add_get("/ping", _ping)
    app.router.add_get("/v1/models", _models)
    app.router.add_post("/abort_request", _abort)
    app.router.add_post("/generate", generate)
    app.router.add_post("/v1/completions", completions)
    app.router.add_post("/v1/chat/completions", chat)
    if server.flags["enable_metrics"]:
        app.router.add_get("/metrics", _metrics)
    app.on_response_prepare.append(_access_line)
    return app


async def _access_line(request: web.Request, response: web.StreamResponse) -> None:
    server = request.app[SERVER]
    prefixes = server.flags["uvicorn_access_log_exclude_prefixes"] or ()
    if any(request.path.startswith(p) for p in prefixes):
        return
    peer = request.transport.get_extra_info("peername") if request.transport else None
    host = f"{peer[0]}:{peer[1]}" if peer else "-"
    server.log.access(
        host, request.method, request.path_qs, response.status, web_reason(response.status)
    )


def web_reason(status: int) -> str:
    """Return the phrase that HTTP gives a status."""
    return {
        200: "OK",
        400: "Bad Request",
        401: "Unauthorized",
        404: "Not Found",
        405: "Method Not Allowed",
        500: "Internal Server Error",
        503: "Service Unavailable",
    }.get(status, "")


@web.middleware
async def _guard(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Ask for the key, and answer mistakes as SGLang does."""
    key = request.app[SERVER].flags["api_key"]
    if key and not request.path.startswith(_OPEN):
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
            return web.json_response({"error": "Unauthorized"}, status=401)
    try:
        return await handler(request)
    except BadRequest as e:
        error: dict[str, object] = {
            "object": "error",
            "message": str(e),
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        }
        if request.path == "/generate" and not isinstance(e, Malformed):
            error = {"error": {"message": str(e)}}
        return web.json_response(error, status=400)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as e:
        return web.json_response({"detail": e.reason}, status=e.status)


async def _health(request: web.Request) -> web.Response:
    """Answer 200 once any token came within the poll: a second at least when all is well."""
    server = request.app[SERVER]
    if server.status != "draining" and _lies(server):
        return web.Response()
    if server.status in ("starting", "draining"):
        return web.Response(status=503)
    before = server.scheduler.tokens_out
    job = probe(server)
    server.scheduler.submit(job)
    for _ in range(int(_HEALTH_LIMIT_S / _HEALTH_POLL_S)):
        await asyncio.sleep(server.clock.real_s(_HEALTH_POLL_S))
        if server.scheduler.tokens_out > before:
            server.status = "up" if server.status == "unhealthy" else server.status
            return web.Response()
    server.scheduler.abort(job.rid)
    server.status = "unhealthy"
    server.log.line(
        "Health check failed. Server couldn't get a response from detokenizer for last "
        f"{int(_HEALTH_LIMIT_S)} seconds. tic start time: . last_heartbeat time: ."
    )
    return web.Response(status=503)


def _lies(server: Server) -> bool:
    return "health_lies" in server.faults or (
        "hang_serving" in server.faults and server.status != "starting"
    )


def probe(server: Server) -> Job:
    """Return the job of a health check: one token after one."""
    return server.job("\0", prompt_tokens=1, max_tokens=1, internal=True)


async def _ready(request: web.Request) -> web.Response:
    return web.Response(status=200 if request.app[SERVER].status == "up" else 503)


async def _ping(request: web.Request) -> web.Response:
    del request
    return web.Response()


async def _server_info(request: web.Request) -> web.Response:
    """Ask the scheduler, and so wait for ever where that hangs."""
    server = request.app[SERVER]
    await server.loaded.wait()
    await server.scheduler.awake.wait()
    return web.json_response(server.info())


async def _model_info(request: web.Request) -> web.Response:
    flags = request.app[SERVER].flags
    return web.json_response(
        {
            "model_path": flags["model_path"],
            "served_model_name": flags["served_model_name"],
            "tokenizer_path": flags["tokenizer_path"],
            "is_generation": True,
            "preferred_sampling_params": flags["preferred_sampling_params"],
            "weight_version": flags["weight_version"],
            "simulated": True,
        }
    )


async def _models(request: web.Request) -> web.Response:
    server = request.app[SERVER]
    name = server.flags["served_model_name"]
    card = {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "sglang",
        "root": name,
        "parent": None,
        "max_model_len": server.context_len,
    }
    return web.json_response({"object": "list", "data": [card]})


async def _flush_cache(request: web.Request) -> web.Response:
    server = request.app[SERVER]
    await server.loaded.wait()
    await server.scheduler.awake.wait()
    try:
        patience_s = float(request.query.get("timeout", "0"))
    except ValueError:
        raise Malformed("timeout: Input should be a valid number") from None
    end_s = server.clock.now_s() + patience_s
    while not server.scheduler.flush():
        if server.clock.now_s() >= end_s:
            server.log.line(
                "Cache not flushed because there are pending requests. "
                f"#queue-req: {len(server.scheduler.waiting)}, "
                f"#running-req: {len(server.scheduler.running)}",
                rank=0,
            )
            return web.Response(text=_NOT_FLUSHED, status=400)
        await asyncio.sleep(server.clock.real_s(min(0.1, patience_s)))
    server.log.line("Cache flushed successfully!", rank=0)
    return web.Response(text=_FLUSHED)


async def _abort(request: web.Request) -> web.Response:
    server = request.app[SERVER]
    try:
        body = await request.json()
    except json.JSONDecodeError as e:
        raise Malformed(f"JSON decode error: {e}") from None
    if body.get("abort_all"):
        server.scheduler.abort()
    elif body.get("rid"):
        server.scheduler.abort(str(body["rid"]))
    return web.Response()


async def _metrics(request: web.Request) -> web.Response:
    return web.Response(
        text=exposition(request.app[SERVER]), content_type="text/plain", charset="utf-8"
    )
