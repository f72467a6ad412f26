"""Reads the decode lines of an SGLang log, by key and value, whatever their layout.

`accept len` counts the target's own token (accepted drafts + 1 a step), `accept rate` is
accepted drafts by draft slots; both are means over one log interval, and missing without
speculation.
"""

import re
from dataclasses import dataclass

_PAIR = re.compile(r"(?:^|[,.\]] )([#\w][\w #()/-]*?): (True|False|-?[\d.]*\d)")
_RETRACTED = re.compile(r"#retracted[-_]reqs?\s*[:=]\s*(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeWindow:
    """The decode lines so far; the last line's values, None where it did not say.

    Attributes:
        lines: Decode lines seen.
        graph_lines: Those that say whether a graph was used.
        without_graph: Those of them in which none was.
        accept_lines: Those that give an accept length.
        accept_length_mean: Mean of accept length over them.
        accept_length: Tokens a verify step yields, the target's own included.
        accept_rate: Accepted share of the draft slots.
        gen_tok_s: Output tokens a second of the whole server.
        running: Requests in the batch.
        queued: Requests that wait.
        token_usage: Used share of the KV pool.
    """

    lines: int = 0
    graph_lines: int = 0
    without_graph: int = 0
    accept_lines: int = 0
    accept_length_mean: float | None = None
    accept_length: float | None = None
    accept_rate: float | None = None
    gen_tok_s: float | None = None
    running: int | None = None
    queued: int | None = None
    token_usage: float | None = None

    @property
    def share_without_graph(self) -> float | None:
        """Share of the lines without a CUDA graph; None if no line says."""
        return self.without_graph / self.graph_lines if self.graph_lines else None

    @property
    def is_spec_ineffective(self) -> bool:
        """Whether speculation yields nothing: a mean of at most 1.05 over five lines or more.

        1 is a draft of which no token is ever accepted; the margin is for rounding and chance.
        """
        mean = self.accept_length_mean
        return self.accept_lines >= 5 and mean is not None and mean <= 1.05


class DecodeLines:
    """Counts decode lines and retractions."""

    def __init__(self) -> None:
        self.retractions = 0
        self._lines = self._graph_lines = self._without_graph = 0
        self._accept_lines, self._accept_sum = 0, 0.0
        self._last: dict[str, str] = {}

    def take(self, text: str) -> bool:
        """Take a line; tell whether it shows that requests are served."""
        _, is_decode, values = text.partition("Decode batch")
        if is_decode:
            self._take_decode(values)
            return True
        if "#retracted" in text:
            retracted = _RETRACTED.search(text)
            self.retractions += int(retracted[1]) if retracted else 0
            return True
        return "Prefill batch" in text

    def window(self) -> DecodeWindow:
        """Return what is known so far."""
        usage = self._number("token usage")
        return DecodeWindow(
            lines=self._lines,
            graph_lines=self._graph_lines,
            without_graph=self._without_graph,
            accept_lines=self._accept_lines,
            accept_length_mean=self._accept_sum / self._accept_lines
            if self._accept_lines
            else None,
            accept_length=self._number("accept len"),
            accept_rate=self._number("accept rate"),
            gen_tok_s=self._number("gen throughput (token/s)"),
            running=self._count("#running-req"),
            queued=self._count("#queue-req"),
            token_usage=usage if usage is not None else self._number("full token usage"),
        )

    def _take_decode(self, values: str) -> None:
        found = {key.strip(): value for key, value in _PAIR.findall(values)}
        self._last = found
        self._lines += 1
        graph = next((v for k, v in found.items() if k.endswith(" graph")), None)
        if graph is not None:
            self._graph_lines += 1
            self._without_graph += graph == "False"
        length = self._number("accept len")
        if length is not None:
            self._accept_lines += 1
            self._accept_sum += length

    def _number(self, key: str) -> float | None:
        try:
            return float(self._last[key])
        except (KeyError, ValueError):
            return None

    def _count(self, key: str) -> int | None:
        value = self._number(key)
        return None if value is None else int(value)
