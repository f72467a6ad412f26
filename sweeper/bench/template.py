"""The bodies of a job's requests, with the model's chat template where its server has one.

    salted prompt --POST /tokenize--> token ids of the whole chat, template and all --> body
    salted prompt --------------------------------------------------------------> body

An instruction-tuned model that is sent bare text is out of its depth, and a draft with it. The
plain routes know no template, and only /generate tells acceptance by request in all versions of
SGLang; so the server is asked to write the chat as tokens (SGLang 0.5.15 and 0.5.23, vLLM), and
those are sent. That is done before the window; where passes go on for a duration, one pass ahead.

SGLang 0.5.15 cannot answer /tokenize for a tokenizer that names no greatest length (its
10^30 fits no JSON of theirs: HTTP 500). Its chat route tells a prompt's tokens too, but runs the
prompt; so there the later passes of a duration get a salt in tokens instead.
"""

import asyncio
import json
import re
from typing import Any

import aiohttp

from sweeper.bench.jobs import Job, Refused
from sweeper.bench.workload import PATHS, Prompt, as_messages, request_body, salted
from sweeper.clock import Clock

#: What chat templates put around a turn. A prompt that holds such a mark brings its own.
_MARK = re.compile(r"<\|\w+\|>|<\uff5c|\[/?INST\]|<(start|end)_of_turn>")
_AT_ONCE = 8
#: Tokens of a salt that make another one: 16 hexadecimal digits have at least so many.
_SALT_TOKENS = 6
_LEAST_S = 5.0
#: Answers of a server that has no such route or no template; others are faults.
_HAS_NONE = frozenset({400, 404, 405, 422, 500, 501})


class TemplateRefused(Refused):
    """The server did not write a chat as tokens, though it must."""


class Bodies:
    """Makes the bodies of one job's requests.

    Args:
        job: What is sent.
        session: Through which the server is asked.
    """

    def __init__(self, job: Job, session: aiohttp.ClientSession) -> None:
        self._job = job
        self._session = session
        self._by_server = False
        self._by_chat = False
        self._first: dict[int, list[int]] = {}
        self._salt_at = 0
        self._soon: dict[tuple[int, int], asyncio.Task[list[int]]] = {}

    @property
    def chat_template(self) -> str:
        """Whose template the prompts stand in: "server", "prompts", "partly" or "none"."""
        if self._job.route == "chat":
            return "server"
        own = sum(map(_brings_its_own, self._job.prompts))
        others = len(self._job.prompts) - own
        if not self._by_server:
            return "none" if not own else "partly" if others else "prompts"
        return "server" if not own else "partly"

    async def prepare(self) -> None:
        """Find out whether the server has a template, and have the first pass written in it.

        Raises:
            TemplateRefused: It must have one and has none, or it does not answer.
        """
        job = self._job
        wanted = [i for i, p in enumerate(job.prompts) if not _brings_its_own(p)]
        if job.route == "chat" or job.chat_template == "never" or not wanted:
            return
        first = salted(job.prompts[wanted[0]], job.salt, job.repeat, wanted[0])
        status, ids, said = await self._ask(first)
        if status == 500:
            self._by_chat = True
            chat_status, ids, chat_said = await self._ask(first)
            if ids:
                other = salted(job.prompts[wanted[0]], job.salt + "/other", job.repeat, wanted[0])
                self._salt_at = _same(ids, (await self._ask(other))[1])
            else:
                said = f"{said}; by chat HTTP {chat_status}: {chat_said}"
        self._by_server = bool(ids)
        if not ids and (job.chat_template == "always" or status not in {200, *_HAS_NONE}):
            raise TemplateRefused(f"POST /tokenize gave no chat as tokens: HTTP {status}: {said}")
        if ids:
            turns = asyncio.Semaphore(_AT_ONCE)
            tasks = [self._start(job.repeat, index, turns) for index in wanted]
            written = await asyncio.gather(*tasks)
            self._first = dict(zip(wanted, written, strict=True))

    def look_ahead(self, repeat: int, index: int) -> None:
        """Have a prompt of a later pass written now, since its turn will come."""
        if self._by_server and not _brings_its_own(self._job.prompts[index]):
            self._start(repeat, index, None)

    async def body(self, prompt: Prompt, repeat: int, index: int) -> bytes:
        """Return the body of one request.

        Raises:
            TemplateRefused: The server did not write it as tokens, as it did before.
        """
        job = self._job
        ids: list[int] | None = None
        if self._by_server and not _brings_its_own(prompt):
            task = self._soon.pop((repeat, index), None) or self._start(repeat, index, None)
            ids = await task
            self._soon.pop((repeat, index), None)
        content = request_body(
            salted(prompt, job.salt, repeat, index),
            route=job.route,
            model=job.model,
            max_tokens=job.max_tokens,
            temperature=job.temperature,
            ignore_eos=job.ignore_eos,
            ids=ids,
        )
        return json.dumps(content).encode()

    def close(self) -> None:
        """Leave what is still being written."""
        for task in self._soon.values():
            task.cancel()

    def _start(
        self, repeat: int, index: int, turns: asyncio.Semaphore | None
    ) -> "asyncio.Task[list[int]]":
        if self._by_chat and index in self._first:
            task = asyncio.create_task(self._resalted(repeat, index))
        else:
            prompt = salted(self._job.prompts[index], self._job.salt, repeat, index)
            task = asyncio.create_task(self._written(prompt, turns))
        self._soon[repeat, index] = task
        return task

    async def _written(self, prompt: Prompt, turns: asyncio.Semaphore | None) -> list[int]:
        async with turns or asyncio.Semaphore():
            status, ids, said = await self._ask(prompt)
        if not ids:
            raise TemplateRefused(f"POST /tokenize gave no chat as tokens: HTTP {status}: {said}")
        return ids

    async def _resalted(self, repeat: int, index: int) -> list[int]:
        """Return a prompt of the first pass with the tokens of another salt.

        They are digits of the pass's number, the lowest first, written with the tokens that
        salts are made of.
        """
        at, end = self._salt_at, self._salt_at + _SALT_TOKENS
        digits = sorted({token for ids in self._first.values() for token in ids[at:end]})
        number, salt = repeat - self._job.repeat, []
        for _ in range(_SALT_TOKENS):
            number, digit = divmod(number, len(digits))
            salt.append(digits[digit])
        ids = self._first[index]
        return [*ids[:at], *salt, *ids[end:]]

    async def _ask(self, prompt: Prompt) -> tuple[int, list[int], str]:
        """Return the status, the token ids if there are any, and what else was said."""
        job = self._job
        real_s = max(Clock(job.time_scale).real_s(job.probe_s), _LEAST_S)
        body: dict[str, Any] = {"model": job.model, "messages": as_messages(prompt)}
        path = "/tokenize"
        if self._by_chat:
            # Greedy, since SGLang verifies a batch by sampling if one request of it samples.
            asked = {"max_tokens": 1, "temperature": 0, "return_prompt_token_ids": True}
            path, body = PATHS["chat"], body | asked
        url, data = job.url.rstrip("/") + path, json.dumps(body).encode()
        try:
            async with asyncio.timeout(real_s):
                try:
                    return await self._post(url, data)
                except aiohttp.ClientConnectionError:  # after an HTTP 500 a server hangs up
                    return await self._post(url, data)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            why = str(error) or type(error).__name__
            said = f"POST {path} was not answered: {why}"
            raise TemplateRefused(said, stalled=isinstance(error, TimeoutError)) from error

    async def _post(self, url: str, data: bytes) -> tuple[int, list[int], str]:
        async with self._session.post(url, data=data) as response:
            text = (await response.read()).decode("utf-8", "replace")
            ids = _ids(text) if response.status == 200 else []
            return response.status, ids, text.strip()[:200]


def _ids(text: str) -> list[int]:
    """Return the token ids of an answer; none of an answer that holds no such list."""
    try:
        answer: Any = json.loads(text)
    except ValueError:
        return []
    if not isinstance(answer, dict):
        return []
    tokens = answer.get("tokens")
    choices = answer.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        tokens = choices[0].get("prompt_token_ids")
    if not isinstance(tokens, list) or not all(type(t) is int for t in tokens):
        return []
    return tokens


def _same(a: list[int], b: list[int]) -> int:
    """Return how many tokens two prompts begin with alike."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def _brings_its_own(prompt: Prompt) -> bool:
    return not prompt.messages and _MARK.search(prompt.text) is not None
