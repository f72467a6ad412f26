"""Prompts stand in the server's chat template where it has one, and the row says so."""

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sweeper.bench.process import ClientProcess
from sweeper.bench.workload import load_prompts
from sweeper.errors import BenchFailed, FailureClass
from sweeper.judging.fairness import unfair_templates
from sweeper.records import Limits, Workload
from tests.bench.servers import PlainServer, run
from tests.build import make_record

SHORT = Workload(name="short", max_tokens=4, warmup=0)
PLAIN_ROUTES = pytest.mark.parametrize("route", ["generate", "completions"])


class ServerWithTemplate(PlainServer):
    """Writes chats as tokens: a mark, the characters of each turn, and the opening of its own."""

    step_s = 0.001

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        turns = [f"{m['role']}:{m['content']}" for m in body["messages"]]
        self.asked.append("".join(turns))
        tokens = [0, *(ord(c) for c in "".join(turns)), 1]
        return web.json_response({"tokens": tokens, "count": len(tokens), "max_model_len": 99})

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_post("/tokenize", self.tokenize)
        return app


class ServerWithoutTemplate(ServerWithTemplate):
    """Has the route, and says as SGLang does that its model has no template."""

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"message": "chat_template is not set"}, status=400)


class ServerWithoutGreatestLength(ServerWithTemplate):
    """Cannot answer /tokenize, as SGLang 0.5.15 with some tokenizers; its chat route tells."""

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=500, text="Internal Server Error")

    async def stream(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if not body.get("return_prompt_token_ids"):
            return await super().stream(request)
        assert body["temperature"] == 0
        text = "".join(f"{m['role']}:{m['content']}" for m in body["messages"])
        self.asked.append(text)
        tokens = [0, *(ord(c) for c in text), 1]
        choice = {"index": 0, "message": {"content": "w"}, "prompt_token_ids": tokens}
        return web.json_response({"choices": [choice]})


class ServerOfAnotherKind(ServerWithTemplate):
    """Has a route of that name which knows nothing of chats."""

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"tokens": []})


class ServerThatForgets(ServerWithTemplate):
    """Writes one chat, and then fails."""

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        if self.asked:
            return web.Response(status=503)
        return await super().tokenize(request)


class ServerThatRefuses(ServerWithTemplate):
    """Is not to be asked."""

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=503)


class ServerThatIsSilent(ServerWithTemplate):
    """Takes the question and gives no answer."""

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(3600)
        return await super().tokenize(request)


class ServerThatFallsSilent(ServerThatIsSilent):
    """Answers once."""

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        if self.asked:
            return await super().tokenize(request)
        return await ServerWithTemplate.tokenize(self, request)


def ids_of(body: dict[str, Any]) -> object:
    return body.get("input_ids", body.get("prompt"))


@PLAIN_ROUTES
@pytest.mark.parametrize("kind", [ServerWithTemplate, ServerWithoutGreatestLength])
def test_the_servers_template_is_used_where_it_has_one(
    client: ClientProcess, kind: type[ServerWithTemplate], route: str
) -> None:
    server = kind()
    measured, requests = run(client, server, dataclasses.replace(SHORT, route=route))
    assert measured.chat_template == "server"
    assert measured.requests == len(requests) == 5
    sent = [ids_of(body) for body in server.bodies]
    assert all(isinstance(ids, list) and (ids[0], ids[-1]) == (0, 1) for ids in sent)
    texts = ["".join(map(chr, ids[1:-1])) for ids in sent if isinstance(ids, list)]
    for prompt, text in zip(load_prompts("five"), texts, strict=True):
        assert text.startswith("user:[")
        assert text.endswith(prompt.text)
    assert not any("text" in body for body in server.bodies)


@PLAIN_ROUTES
@pytest.mark.parametrize("kind", [PlainServer, ServerWithoutTemplate, ServerOfAnotherKind])
def test_a_server_without_a_template_gets_the_text(
    client: ClientProcess, kind: type[PlainServer], route: str
) -> None:
    server = kind()
    measured, _ = run(client, server, dataclasses.replace(SHORT, route=route))
    assert measured.chat_template == "none"
    key = "text" if route == "generate" else "prompt"
    assert all(isinstance(body[key], str) for body in server.bodies)


def test_the_chat_route_leaves_it_to_the_server(client: ClientProcess) -> None:
    server = ServerWithTemplate()
    measured, _ = run(client, server, dataclasses.replace(SHORT, route="chat"))
    assert measured.chat_template == "server"
    assert server.asked == []


def test_never_means_never(client: ClientProcess) -> None:
    server = ServerWithTemplate()
    measured, _ = run(client, server, dataclasses.replace(SHORT, chat_template="never"))
    assert (measured.chat_template, server.asked) == ("none", [])


@pytest.mark.parametrize("kind", [PlainServer, ServerWithoutTemplate, ServerOfAnotherKind])
def test_always_fails_where_there_is_none(client: ClientProcess, kind: type[PlainServer]) -> None:
    with pytest.raises(BenchFailed, match="/tokenize gave no chat as tokens"):
        run(client, kind(), dataclasses.replace(SHORT, chat_template="always"))


@pytest.mark.parametrize("kind", [ServerThatIsSilent, ServerThatFallsSilent])
def test_a_server_that_gives_no_answer_stands_still(
    client: ClientProcess, kind: type[ServerWithTemplate]
) -> None:
    with pytest.raises(BenchFailed, match="/tokenize was not answered: TimeoutError") as caught:
        run(client, kind(), SHORT, limits=Limits(probe_s=0.5))
    assert caught.value.failure.kind is FailureClass.HANG


def test_a_server_that_does_not_say_is_no_server_without(client: ClientProcess) -> None:
    with pytest.raises(BenchFailed, match="HTTP 503"):
        run(client, ServerThatRefuses(), SHORT)
    with pytest.raises(BenchFailed, match="HTTP 503"):
        run(client, ServerThatForgets(), SHORT)


@pytest.mark.parametrize(
    "text",
    [
        "<|im_start|>user\nHi<|im_end|>\n",
        "[INST] Hi [/INST]",
        "<start_of_turn>user\nHi",
        "<\uff5cUser\uff5c>Hi",
    ],
)
def test_prompts_that_bring_a_template_get_no_second_one(
    client: ClientProcess, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({"prompt": text}), encoding="utf-8")
    server = ServerWithTemplate()
    measured, _ = run(client, server, dataclasses.replace(SHORT, prompts=str(path)))
    assert (measured.chat_template, server.asked) == ("prompts", [])
    assert server.bodies[0]["text"].endswith(text)
    path.write_text(
        json.dumps({"prompt": text}) + "\n" + json.dumps({"prompt": "Hi"}), encoding="utf-8"
    )
    measured, _ = run(client, server, dataclasses.replace(SHORT, prompts=str(path)))
    assert measured.chat_template == "partly"


def test_chats_keep_their_turns(client: ClientProcess, tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    path.write_text(json.dumps({"messages": messages}), encoding="utf-8")
    server = ServerWithTemplate()
    run(client, server, dataclasses.replace(SHORT, prompts=str(path)))
    assert server.asked[0].endswith("] Be brief.user:Hi")


@pytest.mark.parametrize("kind", [ServerWithTemplate, ServerWithoutGreatestLength])
def test_no_pass_of_a_duration_sends_what_one_before_it_sent(
    client: ClientProcess, kind: type[ServerWithTemplate]
) -> None:
    server = kind()
    server.ttft_s = 0.01
    workload = dataclasses.replace(SHORT, concurrency=3, repeats=None, duration_s=1.0)
    measured, requests = run(client, server, workload)
    assert measured.failed_requests == 0
    assert max(r.repeat for r in requests) >= 2
    sent = [tuple(body["input_ids"]) for body in server.bodies]
    assert len(set(sent)) == len(sent)
    if kind is ServerWithoutGreatestLength:  # it runs what it is asked to write
        assert len(server.asked) == 5 + 2


def test_measurements_with_and_without_a_template_are_not_compared_in_silence() -> None:
    def record(number: int, template: str | None) -> Any:
        made = make_record(number)
        one = dataclasses.replace(made.measurements[0], chat_template=template)
        return dataclasses.replace(made, measurements=(one,))

    assert unfair_templates([record(0, "server"), record(1, "server"), record(2, None)]) == ()
    (note,) = unfair_templates([record(0, "server"), record(1, "none"), record(2, "none")])
    assert note == (
        "workload single stood in unlike chat templates: server in 1 trial (first: 0), "
        "none in 2 trials (first: 1)"
    )
