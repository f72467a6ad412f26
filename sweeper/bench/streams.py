"""What SGLang and OpenAI-like servers put into their streams. Pure.

    bytes, cut anywhere --EventStream.feed--> the data of whole events            events.py
    data of one event --AnswerReader.feed--> whether it held content; state in `.answer`
    blocks of a stream --StreamReading--> the answer, and which blocks brought content

Tokens are counted by the server only: under speculation a piece holds one token or several.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sweeper.bench.events import EventStream

DONE = b"[DONE]"
_SCAN = json.JSONDecoder().raw_decode
#: Cumulative texts seen growing before a /generate stream counts as cumulative for good.
_SURE_AFTER = 3


class StreamFault(StrEnum):
    """What broke a request."""

    TRUNCATED = "truncated"
    STALLED = "stalled"
    REFUSED = "refused"
    SERVER = "server"
    CONNECT = "connect"
    CLIENT = "client"


@dataclass(slots=True)
class Answer:
    """What a stream has told so far; units as in `records.RequestTiming`.

    Attributes:
        fault: What broke it; None for a good one or one not yet ended.
        error: The fault in words.
        drafted_tokens: Draft tokens proposed, where the server says.
        note: Why a count is missing or is not as the server gave it.
    """

    text: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    verify_steps: int | None = None
    accepted_histogram: tuple[int, ...] | None = None
    drafted_tokens: int | None = None
    finish: str | None = None
    done: bool = False
    fault: StreamFault | None = None
    error: str | None = None
    note: str | None = None


@dataclass(slots=True)
class AnswerReader:
    """Reads the events of one answer, of whichever route: their shape tells it."""

    answer: Answer = field(default_factory=Answer)
    _texts: list[str] = field(default_factory=list)
    _cumulative: bool | None = None
    _pieces: list[str] = field(default_factory=list)

    def feed(self, data: bytes) -> bool:
        """Take the data of one event and tell whether it brought content of the answer.

        Content is text, reasoning or a tool call that is not empty. On /generate, which sends no
        empty opening piece, a token that yields no whole character yet counts as well.
        """
        answer = self.answer
        if data[:1] != b"{" and data.strip() == DONE:
            answer.done = True
            return False
        try:
            event = _from_json(data)
        except ValueError:
            self._break(StreamFault.TRUNCATED, f"an event is not JSON: {_excerpt(data)}")
            return False
        if not isinstance(event, dict):
            self._break(StreamFault.SERVER, f"an event is no object: {_excerpt(data)}")
            return False
        error = event.get("error") or (event if event.get("object") == "error" else None)
        if error:
            message = error.get("message", error) if isinstance(error, dict) else error
            self._break(StreamFault.SERVER, f"the server sent an error: {message}")
            return False
        return self._openai(event) if "choices" in event else self._generate(event)

    def end(self) -> Answer:
        """Settle the answer at the end of the stream; one without a finish is truncated."""
        answer = self.answer
        answer.text = "".join(self._texts) if self._cumulative is False else answer.text
        if self._pieces:
            answer.text = "".join(self._pieces)
        answer.text = _whole_characters(answer.text)
        if answer.output_tokens is None:
            answer.note = "the server sent no usage, so tokens are not known"
        if answer.finish == "abort":
            self._break(StreamFault.TRUNCATED, "the server aborted the request")
        elif answer.finish is None:
            self._break(StreamFault.TRUNCATED, "the stream ended without a finish reason")
        return answer

    def _generate(self, event: Mapping[str, Any]) -> bool:
        answer, meta = self.answer, _mapping(event.get("meta_info"))
        before = answer.output_tokens or 0
        self._usage(_mapping(event.get("usage")))
        self._counts(meta)
        reason = meta.get("finish_reason")
        if reason:
            answer.finish = str(_mapping(reason).get("type", reason))
        ids = event.get("output_ids")
        if self._cumulative is None and isinstance(ids, list) and before and answer.output_tokens:
            self._settle(len(ids) == answer.output_tokens)
        text = event.get("text")
        grew = self._take_text(text) if isinstance(text, str) else False
        return grew or (answer.output_tokens or 0) > before

    def _take_text(self, text: str) -> bool:
        """Join a text of /generate, which is all so far or only what is new."""
        answer = self.answer
        if self._cumulative is None:
            total = self._texts[-1] if self._texts else ""
            if total and text and not text.startswith(total.rstrip("\ufffd")):
                self._settle(cumulative=False)
            elif len(self._texts) >= _SURE_AFTER and len(text) > len(total):
                self._settle(cumulative=True)
        if self._cumulative is False:
            self._texts.append(text)
            return bool(text)
        if self._cumulative is None and text:
            self._texts.append(text)
        grew = bool(text) and text != answer.text
        answer.text = text or answer.text
        return grew

    def _settle(self, cumulative: bool) -> None:
        self._cumulative = cumulative
        if cumulative:
            self._texts = []

    def _openai(self, event: Mapping[str, Any]) -> bool:
        answer = self.answer
        # What nearly all pieces lack is asked for first: a stream has thousands of them.
        if usage := event.get("usage"):
            self._usage(_mapping(usage))
        if more := event.get("sglext"):
            self._counts(_mapping(_mapping(more).get("spec_tokens_details")))
        choices = event.get("choices")
        if not isinstance(choices, list) or not choices:
            return False
        choice = _mapping(choices[0])
        if usage := choice.get("usage"):
            self._usage(_mapping(usage))
        if meta := choice.get("meta_info"):
            self._counts(_mapping(meta))
        if more := choice.get("sglext"):
            self._counts(_mapping(_mapping(more).get("spec_tokens_details")))
        if choice.get("finish_reason"):
            answer.finish = str(choice["finish_reason"])
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            text = choice.get("text")
            piece = text if isinstance(text, str) else ""
            self._pieces.append(piece)
            return bool(piece)
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        parts = [choice.get("text"), reasoning, delta.get("content")]
        for call in delta.get("tool_calls") or ():
            function = _mapping(_mapping(call).get("function"))
            parts += [function.get("name"), function.get("arguments")]
        piece = "".join(part for part in parts if isinstance(part, str))
        self._pieces.append(piece)
        return bool(piece)

    def _usage(self, usage: Mapping[str, Any]) -> None:
        """Take OpenAI's counts; completion_tokens already holds the reasoning tokens."""
        answer = self.answer
        answer.prompt_tokens = _count(usage.get("prompt_tokens"), answer.prompt_tokens)
        answer.output_tokens = _count(usage.get("completion_tokens"), answer.output_tokens)
        reasoning = _count(
            _mapping(usage.get("completion_tokens_details")).get("reasoning_tokens"),
            _count(usage.get("reasoning_tokens"), None),
        )
        if reasoning is not None and reasoning > (answer.output_tokens or reasoning):
            answer.note = (
                f"the server counts {reasoning} reasoning tokens among {answer.output_tokens}"
            )
        details = _mapping(usage.get("prompt_tokens_details"))
        answer.cached_tokens = _count(details.get("cached_tokens"), answer.cached_tokens)

    def _counts(self, meta: Mapping[str, Any]) -> None:
        """Take SGLang's counts, by the names of 0.5.23 or of 0.5.15."""
        answer = self.answer
        answer.prompt_tokens = _count(meta.get("prompt_tokens"), answer.prompt_tokens)
        answer.output_tokens = _count(meta.get("completion_tokens"), answer.output_tokens)
        answer.cached_tokens = _count(meta.get("cached_tokens"), answer.cached_tokens)
        # Without speculation some versions send 0 steps, which means that there are none.
        answer.verify_steps = _count(meta.get("spec_verify_ct"), None) or answer.verify_steps
        proposed = meta.get("spec_num_proposed_drafts", meta.get("spec_proposed_drafts"))
        answer.drafted_tokens = _count(proposed, None) or answer.drafted_tokens
        histogram = meta.get("spec_correct_drafts_histogram") or meta.get("spec_accept_histogram")
        if isinstance(histogram, list) and any(histogram):
            answer.accepted_histogram = tuple(_count(n, 0) or 0 for n in histogram)
            answer.verify_steps = answer.verify_steps or sum(answer.accepted_histogram)

    def _break(self, fault: StreamFault, error: str) -> None:
        if self.answer.fault is None:  # the first cause counts
            self.answer.fault, self.answer.error = fault, error


class StreamReading:
    """Reads one stream block by block."""

    def __init__(self) -> None:
        self._events = EventStream()
        self._reader = AnswerReader()
        self._arrivals: list[int] = []
        self._seen = 0
        self._head = b""
        self._blocks = 0

    def take(self, block: bytes) -> None:
        """Take the next block of bytes."""
        if len(self._head) < 200:
            self._head += block[:200]
        self._read(self._events.feed(block), self._blocks)
        self._blocks += 1

    def end(self) -> tuple[Answer, list[int]]:
        """Return the answer, and for each piece with content the block that completed it."""
        self._read(self._events.close(), max(self._blocks - 1, 0))
        answer = self._reader.end()
        if not self._seen and self._head:
            answer.fault = StreamFault.SERVER
            answer.error = f"the answer is no event stream: {_excerpt(self._head)}"
        return answer, self._arrivals

    def _read(self, events: list[bytes], index: int) -> None:
        self._seen += len(events)
        self._arrivals += [index for data in events if self._reader.feed(data)]


def read_stream(blocks: list[bytes]) -> tuple[Answer, list[int]]:
    """Read a whole stream at once; see `StreamReading`."""
    reading = StreamReading()
    for block in blocks:
        reading.take(block)
    return reading.end()


def _from_json(data: bytes) -> Any:
    """Return what `json.loads` does, in half its time for an object without blanks around it.

    Raises:
        ValueError: It is not JSON.
    """
    try:
        text = data.decode()
        value, end = _SCAN(text)
    except ValueError:
        return json.loads(data)
    return value if end == len(text) else json.loads(data)


def _whole_characters(text: str) -> str:
    """Join surrogates that came in two pieces, and replace those that are alone."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object, otherwise: int | None) -> int | None:
    """Return a count as the server gave it; anything that is no number is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return otherwise
    return round(value)


def _excerpt(data: bytes) -> str:
    return data[:120].decode("utf-8", "replace")
