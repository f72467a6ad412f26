"""Prompts and loads: what is sent, in which order, and when. Pure but for reading prompt files.

name or path --load_prompts--> prompts --one_pass--> the prompts of one pass
prompt --salted--> never seen before --request_body--> the JSON of one request
request rate, seed --arrivals--> send times of an open loop
path of a trace --load_arrivals--> the same from a file
"""

import hashlib
import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.errors import UserError

PROMPT_SETS = Path(__file__).parent / "prompts"
#: Prompts of warm-up requests; no shipped set holds them.
WARMUP_SET = "warmup"
PATHS = {
    "generate": "/generate",
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
}
_TIME_KEYS = ("timestamp", "at_s", "arrival_time")
_SHAREGPT_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "system": "system"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt of a set.

    Attributes:
        id: Unique in its set.
        kind: chat, code, maths, translation, summary, or what the user's file says.
        text: The prompt of a plain one.
        messages: The messages of a chat; empty for a plain one.
    """

    id: str
    kind: str = "chat"
    text: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()


def load_prompts(name: str) -> tuple[Prompt, ...]:
    """Return a shipped set by name, or a user's file by path.

    A file holds one JSON object a line, {"prompt": text} or {"messages": [...]}, each with an
    optional "id" and "kind"; or one JSON array in ShareGPT's shape, of whose conversations
    everything up to the first request of the person is taken.

    Raises:
        UserError: No such set or file, or a mistake in it, with its line.
    """
    shipped = PROMPT_SETS / f"{name}.jsonl"
    path = shipped if shipped.is_file() and "/" not in name else Path(name)
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        sets = ", ".join(sorted(p.stem for p in PROMPT_SETS.glob("*.jsonl")))
        raise UserError(f"no prompt set or file {name!r}; shipped sets: {sets}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read prompts from {name!r}: {error}") from error
    if content.lstrip().startswith("["):
        try:
            items = list(enumerate(json.loads(content), start=1))
        except ValueError as error:
            raise UserError(f"{name}: not JSON: {error}") from error
        prompts = [_prompt(item, f"{name}, item {number}", number) for number, item in items]
    else:
        prompts = []
        # Not by splitlines: JSON may hold U+2028 and other ends of lines as they are.
        for number, line in enumerate(content.split("\n"), start=1):
            if line.strip():
                try:
                    item = json.loads(line)
                except ValueError as error:
                    raise UserError(f"{name}:{number}: not JSON: {error}") from error
                prompts.append(_prompt(item, f"{name}:{number}", number))
    if not prompts:
        raise UserError(f"{name}: holds no prompt")
    (commonest, times), *_ = Counter(p.id for p in prompts).most_common(1)
    if times > 1:
        raise UserError(f"{name}: the id {commonest!r} stands {times} times")
    return tuple(prompts)


def one_pass(
    prompts: Sequence[Prompt], concurrency: int | None, arrivals: int | None = None
) -> tuple[Prompt, ...]:
    """Return the prompts of one pass.

    It is the set, as often as it takes to fill all streams; with a trace, one for each arrival.
    """
    if arrivals is not None:
        return tuple(itertools.islice(itertools.cycle(prompts), arrivals))
    times = -(-(concurrency or 1) // len(prompts))
    return tuple(prompts) * times


def salted(prompt: Prompt, salt: str, repeat: int, index: int) -> Prompt:
    """Return `prompt` behind a prefix that differs for each salt, repeat and place in the pass.

    A prefix cache matches from the first token on, so it can hold none of it.
    """
    word = hashlib.sha256(f"{salt}/{repeat}/{index}/{prompt.id}".encode()).hexdigest()[:16]
    prefix = f"[{word}] "
    if not prompt.messages:
        return Prompt(id=prompt.id, kind=prompt.kind, text=prefix + prompt.text)
    first, *others = prompt.messages
    content = first.get("content") or ""
    if isinstance(content, str):
        content = prefix + content
    else:
        content = [{"type": "text", "text": prefix}, *content]
    return Prompt(
        id=prompt.id, kind=prompt.kind, messages=({**first, "content": content}, *others)
    )


def request_body(
    prompt: Prompt,
    *,
    route: str,
    model: str,
    max_tokens: int,
    temperature: float,
    ignore_eos: bool,
    ids: Sequence[int] | None = None,
) -> dict[str, object]:
    """Return the JSON body of one streaming request.

    Chat leaves the template to the server. The plain routes know none: they get `ids`, the token
    ids of the whole, or where there are none the text, in which messages are written one under
    the other, each behind its role.
    """
    if route == "generate":
        sampling = {
            "max_new_tokens": max_tokens,
            "temperature": temperature,
            "ignore_eos": ignore_eos,
        }
        asked = {"text": _plain(prompt)} if ids is None else {"input_ids": list(ids)}
        return {**asked, "stream": True, "sampling_params": sampling}
    body: dict[str, object] = {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "ignore_eos": ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_spec_tokens_details": True,
    }
    if route == "completions":
        return body | {"prompt": _plain(prompt) if ids is None else list(ids)}
    return body | {"messages": as_messages(prompt)}


def as_messages(prompt: Prompt) -> list[Mapping[str, Any]]:
    """Return a prompt as a chat; a plain one is what the person says."""
    return list(prompt.messages) or [{"role": "user", "content": prompt.text}]


def arrivals(rate: float, seed: str, ramp_s: float = 0.0) -> Iterator[float]:
    """Yield send times in seconds since the start: Poisson, `rate` a second, without end.

    The rate grows evenly from 0 until `ramp_s`. Then rate * t^2 / (2 ramp_s) requests are
    expected until t, so arrivals at rate 1 are put where the expected number is theirs.
    """
    # Not a secret: chance that can be repeated is the point.
    chance = random.Random(seed)
    for expected in itertools.accumulate(chance.expovariate(1.0) for _ in itertools.count()):
        if expected < rate * ramp_s / 2:
            yield math.sqrt(2 * ramp_s * expected / rate)
        else:
            yield expected / rate + ramp_s / 2


def load_arrivals(name: str) -> tuple[float, ...]:
    """Return the send times of a trace, in seconds since its first.

    Each line holds a number of seconds, or an object with one under "timestamp", "at_s" or
    "arrival_time"; lines may be in any order.

    Raises:
        UserError: No such file, or a mistake in it, with its line.
    """
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read arrivals from {name!r}: {error}") from error
    times = [
        _time_of(line, f"{name}:{number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not times:
        raise UserError(f"{name}: holds no arrival")
    first = min(times)
    return tuple(sorted(t - first for t in times))


def _time_of(line: str, where: str) -> float:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: not JSON: {error}") from error
    if isinstance(value, dict):
        value = next((value[key] for key in _TIME_KEYS if key in value), None)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise UserError(f"{where}: expected seconds, or an object with {', '.join(_TIME_KEYS)}")
    return float(value)


def _plain(prompt: Prompt) -> str:
    if not prompt.messages:
        return prompt.text
    lines = [f"{str(m['role']).capitalize()}: {_content_text(m)}" for m in prompt.messages]
    return "\n\n".join([*lines, "Assistant:"])


def _content_text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))


def _prompt(item: object, where: str, number: int) -> Prompt:
    if not isinstance(item, dict):
        raise UserError(f"{where}: expected an object with `prompt` or `messages`")
    name, kind = str(item.get("id", number)), str(item.get("kind", "chat"))
    text = item.get("prompt")
    if isinstance(text, str) and text:
        return Prompt(id=name, kind=kind, text=text)
    messages = item.get("messages")
    if messages is None and isinstance(item.get("conversations"), list):
        messages = _first_turn(item["conversations"])
    if not isinstance(messages, list) or not messages:
        raise UserError(f"{where}: expected an object with `prompt` or `messages`")
    if not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages):
        raise UserError(f"{where}: each message needs a `role`")
    return Prompt(id=name, kind=kind, messages=tuple(messages))


def _first_turn(turns: Sequence[object]) -> list[dict[str, str]]:
    """Return the turns of a ShareGPT conversation up to the person's first, as messages."""
    messages = []
    for turn in turns:
        if not isinstance(turn, dict):
            continue
        role = _SHAREGPT_ROLES.get(str(turn.get("from")))
        if role in ("system", "user"):
            messages.append({"role": role, "content": str(turn.get("value", ""))})
        if role == "user":
            return messages
    return []
