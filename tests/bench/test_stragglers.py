"""One request that goes on and on does not make a pass as long as it likes."""

from collections.abc import AsyncIterator
from typing import Any

from sweeper.bench.process import ClientProcess
from sweeper.records import Limits, Workload
from tests.bench.servers import PlainServer, run


class ServerThatTrickles(PlainServer):
    """Answers its second request far more slowly than the others, a token each tenth of a second."""

    async def answer(self, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        whose = super().answer(path, body)
        if len(self.bodies) == 2:
            slow = PlainServer()
            slow.step_s = 0.1
            whose = slow.answer(path, body)
        async for piece in whose:
            yield piece


def test_a_straggler_is_given_up_and_the_window_ends_with_the_others(
    client: ClientProcess,
) -> None:
    workload = Workload(name="w", concurrency=5, max_tokens=400, warmup=0)
    server = ServerThatTrickles()
    server.step_s = 0.0005
    measured, requests = run(client, server, workload, limits=Limits(progress_s=2.0))
    (straggler,) = (r for r in requests if r.error is not None)
    assert "still unfinished long after all others" in (straggler.error or "")
    assert measured.failed_requests == 1
    assert measured.window_s is not None
    assert measured.window_s < 30.0
    ends = [r.last_ns or 0 for r in requests if r.error is None]
    assert measured.window_s * 1e9 <= max(ends)
