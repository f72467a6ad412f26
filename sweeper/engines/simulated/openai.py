"""OpenAI's generation routes: /v1/completions and /v1/chat/completions.

Acceptance comes on `return_spec_tokens_details`, in a chunk of its own before the usage, or for
a chat without streaming on `return_meta_info`.
"""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from sweeper.engines.simulated.job import Job
from sweeper.engines.simulated.server import SERVER, BadRequest, Malformed, Server, finish_reason
from sweeper.engines.simulated.streams import Cut, event, finished, read_body, read_prompt, stream

_COMPLETIONS_DEFAULT = 16


async def completions(request: web.Request) -> web.StreamResponse:
    """Answer `/v1/completions`."""
    server, body = request.app[SERVER], await read_body(request)
    given = body.get("prompt")
    ids = given if isinstance(given, list) and given and isinstance(given[0], int) else None
    prompt, tokens = read_prompt(given if ids is None else None, ids)
    job = _openai_job(server, body, prompt, tokens, _COMPLETIONS_DEFAULT)

    def piece(cut: Cut) -> bytes:
        choice = {
            "index": 0,
            "text": job.text[cut.chars :],
            "logprobs": None,
            **_openai_end(job),
        }
        return _openai_event(server, job, "text_completion", [choice], _usage_if(body, job))

    if body.get("stream"):
        return await stream(
            request, job, [piece], lambda: _tail(server, job, body, "text_completion")
        )
    await finished(server, job)
    choice = {"index": 0, "text": job.text, "logprobs": None, **_openai_end(job)}
    return web.json_response(_openai_answer(server, job, body, "text_completion", choice))


async def chat(request: web.Request) -> web.StreamResponse:
    """Answer `/v1/chat/completions`."""
    server, body = request.app[SERVER], await read_body(request)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Malformed("messages: Field required")
    prompt = "".join(f"<|{m.get('role')}|>{_content(m)}" for m in messages) + "<|assistant|>"
    most = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    if most > server.context_len:
        raise BadRequest(
            f"max_completion_tokens is too large: {most}."
            f"This model supports at most {server.context_len} completion tokens."
        )
    job = _openai_job(server, body, prompt, None, None)

    def role(cut: Cut) -> bytes:
        choice = {
            "index": 0,
            "delta": {"role": "assistant", "content": "", "reasoning_content": None},
            "logprobs": None,
            "finish_reason": None,
            "matched_stop": None,
        }
        del cut
        return _openai_event(server, job, "chat.completion.chunk", [choice], None)

    def piece(cut: Cut) -> bytes:
        choice = {
            "index": 0,
            "delta": {"content": job.text[cut.chars :], "reasoning_content": None},
            "logprobs": None,
            **_openai_end(job),
        }
        return _openai_event(server, job, "chat.completion.chunk", [choice], _usage_if(body, job))

    if body.get("stream"):
        return await stream(
            request, job, [role, piece], lambda: _tail(server, job, body, "chat.completion.chunk")
        )
    await finished(server, job)
    choice: dict[str, object] = {
        "index": 0,
        "message": {"role": "assistant", "content": job.text, "reasoning_content": None},
        "logprobs": None,
        **_openai_end(job),
    }
    if body.get("return_meta_info"):
        choice["meta_info"] = server.meta_info(job)
    return web.json_response(_openai_answer(server, job, body, "chat.completion", choice))


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return str(content)


def _openai_job(
    server: Server, body: Mapping[str, Any], prompt: str, tokens: int | None, default: int | None
) -> Job:
    asked = body.get("max_completion_tokens") or body.get("max_tokens") or default
    return server.job(
        prompt,
        prompt_tokens=tokens,
        max_tokens=None if asked is None else int(asked),
        ignore_eos=bool(body.get("ignore_eos")),
        temperature=float(body.get("temperature") or 0.0) if "temperature" in body else 1.0,
        rid=body.get("rid"),
    )


def _openai_end(job: Job) -> dict[str, object]:
    reason = finish_reason(job)
    return {
        "finish_reason": None if reason is None else reason["type"],
        "matched_stop": None if reason is None else reason.get("matched"),
    }


def _usage(server: Server, job: Job) -> dict[str, object]:
    report = server.flags["enable_cache_report"]
    return {
        "prompt_tokens": job.prompt_tokens,
        "completion_tokens": job.produced,
        "total_tokens": job.prompt_tokens + job.produced,
        "prompt_tokens_details": {"cached_tokens": job.cached_tokens} if report else None,
        "reasoning_tokens": 0,
    }


def _usage_if(body: Mapping[str, Any], job: Job) -> dict[str, object] | None:
    """Return the running usage where the client asked for it in every chunk."""
    if not (body.get("stream_options") or {}).get("continuous_usage_stats"):
        return None
    return {
        "prompt_tokens": job.prompt_tokens,
        "completion_tokens": job.produced,
        "total_tokens": job.prompt_tokens + job.produced,
    }


def _tail(server: Server, job: Job, body: Mapping[str, Any], kind: str) -> list[bytes]:
    """Return the chunks after the last token: acceptance, then usage, where asked for."""
    events = []
    if body.get("return_spec_tokens_details") and (details := server.spec_details(job)):
        events.append(
            _openai_event(
                server, job, kind, [], None, {"sglext": {"spec_tokens_details": details}}
            )
        )
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append(_openai_event(server, job, kind, [], _usage(server, job)))
    return events


def _openai_event(
    server: Server,
    job: Job,
    kind: str,
    choices: list[dict[str, object]],
    usage: dict[str, object] | None,
    more: Mapping[str, object] | None = None,
) -> bytes:
    return event(
        {
            "id": job.rid,
            "object": kind,
            "created": int(job.arrived_s),
            "model": server.flags["served_model_name"],
            "choices": choices,
            "usage": usage,
            **(more or {}),
        }
    )


def _openai_answer(
    server: Server, job: Job, body: Mapping[str, Any], kind: str, choice: Mapping[str, object]
) -> dict[str, object]:
    answer: dict[str, object] = {
        "id": job.rid,
        "object": kind,
        "created": int(job.arrived_s),
        "model": server.flags["served_model_name"],
        "choices": [choice],
        "usage": _usage(server, job),
    }
    if body.get("return_spec_tokens_details") and (details := server.spec_details(job)):
        answer["sglext"] = {"spec_tokens_details": details}
    return answer
