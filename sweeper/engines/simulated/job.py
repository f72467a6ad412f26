"""One generation: what was asked, what it will say, and how far it is."""

import asyncio
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

#: Words that give a prompt's kind away, in order. The kind only sets how well the draft guesses.
_MARKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("summary", ("summar", "tl;dr", "key points", "main points", "condense", "what happened")),
    ("code", ("code", "python", "numpy", "function", "program", "implement", "script", "sql",
              "rust", "regular expression", "kernel", "algorithm", "class `", "compile")),
    ("translation", ("translat", "into french", "into german", "into chinese", "into spanish")),
    ("maths", ("math", "prove", "proof", "theorem", "integral", "equation", "solve", "probab",
               "derive", "how many", "calculate", "how fast", "find the", "find all", "percent",
               "generalise", "differentiat", "metres", " km", "step by step", "one person in")),
)  # fmt: skip
#: Characters in which the task stands; what follows is its material.
_TASK_CHARS = 400

_WORDS = (
    "the", "of", "a", "to", "and", "in", "that", "it", "is", "was", "for", "on", "with", "as",
    "at", "by", "from", "or", "an", "be", "this", "which", "one", "had", "not", "but", "what",
    "all", "were", "when", "we", "there", "can", "said", "use", "each", "she", "do", "how",
    "their", "will", "up", "other", "about", "out", "many", "then", "them", "these", "so", "some",
    "her", "would", "make", "like", "him", "into", "time", "has", "look", "two", "more", "write",
)  # fmt: skip

#: Characters of a token, for counting a prompt's tokens.
CHARS_PER_TOKEN = 4


def prompt_kind(prompt: str) -> str:
    """Return the kind of a prompt, by words in its first paragraph; "chat" where none is."""
    text = prompt.partition("\n\n")[0][:_TASK_CHARS].lower()
    return next((kind for kind, marks in _MARKS if any(m in text for m in marks)), "chat")


def count_tokens(text: str) -> int:
    """Return how many tokens a text counts as: a quarter of its characters, at least one."""
    return max(-(-len(text) // CHARS_PER_TOKEN), 1)


def words_of(seed: int, prompt: str, *, degenerate: bool) -> Iterator[str]:
    """Yield the answer's words; the same for the same prompt, as greedy decoding answers."""
    rng = random.Random(f"text {seed} {prompt}")
    while True:
        yield " the" if degenerate else f" {rng.choice(_WORDS)}"


def natural_length(seed: int, prompt: str) -> int:
    """Return after how many tokens the answer to a prompt ends by itself."""
    return random.Random(f"length {seed} {prompt}").randint(120, 1200)


def token_id(word: str) -> int:
    """Return a stable id for a word."""
    return zlib.crc32(word.encode()) % 160_000


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """A request in the scheduler; times are engine seconds.

    Attributes:
        rid: Its id.
        prompt: Its text, or a text made of its token ids.
        kind: Kind of prompt.
        prompt_tokens: Length of the prompt.
        limit: Tokens after which it ends.
        ends_naturally: Whether `limit` is where the answer stops by itself.
        words: The answer to come.
        draws: Draws of the acceptance to come.
        chances: Chance that at least i + 1 draft tokens are accepted.
        factor: Factor on step times while it runs.
        arrived_s: When it came.
        internal: Whether it is a warm-up or a health check.
        number: Its number among requests from outside, from 1; 0 for internal ones.
        started_s: When its prefill ended; None before.
        finished_s: When it ended; None before.
        cached_tokens: Prompt tokens found in the prefix cache.
        produced: Tokens so far.
        text: The answer so far.
        ids: The answer's token ids so far, as JSON without brackets.
        verify_ct: Verify steps so far.
        histogram: Index i: steps in which i draft tokens were accepted.
        finish: "length", "stop" or "abort" at the end.
        news: Set at each change.
    """

    rid: str
    prompt: str
    kind: str
    prompt_tokens: int
    limit: int
    ends_naturally: bool
    words: Iterator[str]
    draws: Iterator[float]
    chances: tuple[float, ...]
    factor: float
    arrived_s: float
    internal: bool = False
    number: int = 0
    started_s: float | None = None
    finished_s: float | None = None
    cached_tokens: int = 0
    produced: int = 0
    text: str = ""
    ids: str = ""
    verify_ct: int = 0
    histogram: list[int] = field(default_factory=list)
    finish: str | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def extend(self, count: int, now_s: float) -> int:
        """Add up to `count` tokens, end at the limit, and return how many were added."""
        count = min(count, self.limit - self.produced)
        words = list(islice(self.words, count))
        self.text += "".join(words)
        ids = ",".join(str(token_id(w)) for w in words)
        self.ids = f"{self.ids},{ids}" if self.ids else ids
        self.produced += count
        if self.produced >= self.limit:
            self.end("stop" if self.ends_naturally else "length", now_s)
        self.news.set()
        return count

    def end(self, finish: str, now_s: float) -> None:
        """Mark it as finished."""
        self.finish = finish
        self.finished_s = now_s
        self.news.set()

    @property
    def correct_drafts(self) -> int:
        """Draft tokens accepted so far."""
        return sum(i * n for i, n in enumerate(self.histogram))


class PrefixCache:
    """Remembers prompts by their leading characters, a token at a time."""

    #: Prefixes kept before all are forgotten: memory stays bounded.
    _MOST = 2_000_000

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._seen: set[int] = set()

    def match(self, prompt: str) -> int:
        """Return how many leading tokens of `prompt` are known, and learn all of it.

        The last token is always computed, as SGLang does.
        """
        if not self._enabled:
            return 0
        known = 0
        in_prefix = True
        digest = 0
        prefixes = []
        for start in range(0, len(prompt), CHARS_PER_TOKEN):
            digest = hash((digest, prompt[start : start + CHARS_PER_TOKEN]))
            in_prefix = in_prefix and digest in self._seen
            known += in_prefix
            prefixes.append(digest)
        if len(self._seen) > self._MOST:
            self._seen.clear()
        self._seen.update(prefixes)
        return min(known, count_tokens(prompt) - 1)

    def clear(self) -> None:
        """Forget everything."""
        self._seen.clear()
