"""Whether a server is ready: its own process lives, it made a token, and it runs what was asked.

    connect -> health -> ready probe, each answered 200 by nobody else -> info probe -> read-back agrees

A step that fails is tried again until the start's limits end it. There is at most one request in
flight, and none before the port accepts: probes that time out pile up in a server that is busy.
"""

import time

from sweeper.clock import Clock
from sweeper.engines.base import Engine
from sweeper.errors import Failure, FailureClass, LaunchFailed
from sweeper.records import Launch, Limits, ServerFacts
from sweeper.redaction import redact_text
from sweeper.serving import ports
from sweeper.serving.control import Call, ControlAnswer
from sweeper.serving.process import ServerProcess, real_limit_s

#: Between two probes, in engine seconds, and the least of it in real ones.
_PAUSE_S, _LEAST_PAUSE_S = 0.25, 0.03
#: After a probe that had no answer, in engine seconds.
_LONG_PAUSE_S = 10.0
#: A ready server does not refuse a request at this many tries; more would not change it.
_REFUSALS = 5


class Readiness:
    """Probes one starting server, a step at each call."""

    def __init__(
        self,
        engine: Engine,
        launch: Launch,
        process: ServerProcess,
        *,
        limits: Limits,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._launch = launch
        self._process = process
        self._clock = clock
        self._probe_real_s = real_limit_s(clock, limits.probe_s)
        self._call: Call | None = None
        self._requests = [engine.health_probe(), engine.ready_probe(), engine.info_probe()]
        self._next = 0.0
        self._refused = 0
        self.last_answer = ""

    @property
    def wait_s(self) -> float:
        """Real seconds until the next step has something to do, for the start's loop."""
        return max(_LEAST_PAUSE_S, min(self._clock.real_s(_PAUSE_S), _PAUSE_S))

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What becomes readable when a request in flight is over."""
        return () if self._call is None else (self._call.fileno(),)

    def step(self) -> ServerFacts | None:
        """Go one step; return the facts of a server that is ready.

        Raises:
            LaunchFailed: Another server answers, or this one will never be what was asked.
        """
        if self._call is None:
            if time.monotonic() >= self._next and ports.accepts(self._process.block.port):
                self._call = Call(
                    self._process.block.port,
                    self._requests[0],
                    timeout_s=self._probe_real_s,
                    key=api_key(self._launch),
                )
            else:
                self._later(_PAUSE_S)
            return None
        if not self._call.is_over:
            return None
        call, self._call = self._call, None
        call.close()
        try:
            answer = call.answer()
        except OSError as error:
            self.last_answer = str(error)
            self._later(_LONG_PAUSE_S if isinstance(error, TimeoutError) else _PAUSE_S)
            return None
        asked = self._requests[0]
        self.last_answer = redact_text(f"{asked.method} {asked.path}: {answer}")
        if answer.status != 200:
            self._refuse(answer)
            return None
        return self._accept(answer)

    def close(self) -> None:
        """Drop a request in flight."""
        if self._call is not None:
            self._call.close()
            self._call = None

    def _later(self, engine_s: float) -> None:
        self._next = max(
            self._next, time.monotonic() + max(_LEAST_PAUSE_S, self._clock.real_s(engine_s))
        )

    def _refuse(self, answer: ControlAnswer) -> None:
        self._later(_PAUSE_S)
        # 5xx, 408, 425 and 429 say "not yet" (RFC 9110 15.5, RFC 8470, RFC 6585); others "no".
        if 400 <= answer.status < 500 and answer.status not in (408, 425, 429):
            self._refused += 1
        if self._refused >= _REFUSALS:
            kind = FailureClass.UNKNOWN
            if self._process.has_stranger():
                kind = FailureClass.FOREIGN_SERVER
            raise LaunchFailed(
                Failure(kind=kind, stage=self._process.stage, line=self.last_answer)
            )

    def _accept(self, answer: ControlAnswer) -> ServerFacts | None:
        if self._process.has_stranger():
            self._process.blame_stranger()
            line = f"a process that is not this server answers on port {self._process.block.port}"
            raise LaunchFailed(
                Failure(kind=FailureClass.FOREIGN_SERVER, stage=self._process.stage, line=line)
            )
        if len(self._requests) > 1:
            del self._requests[0]
            self._next = 0.0
            return None
        if not isinstance(answer.json, dict):
            self._later(_PAUSE_S)
            return None
        return self._engine.read_back(self._launch, answer.json, port=self._process.block.port)


def api_key(launch: Launch) -> str | None:
    """Return the key that requests to this server must carry; None without one."""
    key = launch.flags.get("api-key", False)
    # Of digits only, it is a number in YAML; the command line has its text.
    return None if isinstance(key, bool) else str(key)
