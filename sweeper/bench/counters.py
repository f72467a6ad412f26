"""Accept length by the server's own counters, where its answers say nothing of it.

    /metrics before a window, /metrics after --difference, summed over all ranks--> Counted

SGLang's OpenAI routes tell no acceptance before 0.5.23. Its gauges hold the last interval of one
rank and `/server_info` a mean since the last flush; only counters that go up by finished requests
belong to a window. They exist with --enable-metrics.
"""

import re
from dataclasses import dataclass

import aiohttp

_LINE = re.compile(
    r"^sglang:(spec_verify_calls|generation_tokens|num_requests)_total(?:\{[^}]*\})?\s+(\S+)",
    re.MULTILINE,
)
_WAIT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Sums over all ranks, since the server started or of a window.

    Attributes:
        verify_steps: Verify steps of finished requests.
        tokens: Output tokens.
        requests: Requests.
    """

    verify_steps: float
    tokens: float
    requests: float

    def __sub__(self, before: "Counted") -> "Counted":
        return Counted(
            verify_steps=self.verify_steps - before.verify_steps,
            tokens=self.tokens - before.tokens,
            requests=self.requests - before.requests,
        )

    @property
    def decoded(self) -> float:
        """Tokens that came from steps: the first one of each request came from its prefill."""
        return self.tokens - self.requests


def parse(text: str) -> Counted | None:
    """Return the sums that a page of metrics shows; None if it is not SGLang's."""
    sums = {"spec_verify_calls": 0.0, "generation_tokens": 0.0, "num_requests": 0.0}
    seen = False
    for name, value in _LINE.findall(text):
        try:
            sums[name] += float(value)
        except ValueError:
            continue
        seen = True
    if not seen:
        return None
    return Counted(
        verify_steps=sums["spec_verify_calls"],
        tokens=sums["generation_tokens"],
        requests=sums["num_requests"],
    )


async def read_counters(session: aiohttp.ClientSession, url: str) -> Counted | None:
    """Return the server's sums so far; None where it does not tell them."""
    try:
        timeout = aiohttp.ClientTimeout(total=_WAIT_S)
        async with session.get(url.rstrip("/") + "/metrics", timeout=timeout) as response:
            return parse(await response.text()) if response.status == 200 else None
    except (TimeoutError, aiohttp.ClientError, OSError, UnicodeDecodeError):
        return None
