"""The Engine seam: all that Sweeper must know of a serving engine, as pure functions.

    launch --refuse--> why it cannot work, before anything is started
           --argv, environment--> the process (serving/ starts it)
    log    --LogReader--> stage by stage, and at the end the failure
    ready? --health_probe, ready_probe--> its own warm-up is over; it makes a real token
           --read_back--> what the server says it runs, against what was asked

An engine does no I/O: it builds requests and reads answers; `serving/` sends them. The simulated
server speaks SGLang's language, so the SGLang engine drives both and cannot tell them apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sweeper.errors import Failure, Stage
from sweeper.records import FlagValue, Launch, ServerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRequest:
    """An HTTP request to a server: method, path and JSON body."""

    method: str
    path: str
    json: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a server's process ended, as its owner saw it.

    Attributes:
        exit_code: As subprocess gives it (-9 for SIGKILL); None while it lives.
        killed_by_us: Whether the owner killed it (a limit was passed, or it was told to stop).
        held_by: Memory that other processes hold on the server's GPUs, lines for a person; empty
            if it is known that nobody holds any, None if that is not known.
        foreign_on_port: Whether something that is not this server answered on its port.
    """

    exit_code: int | None
    killed_by_us: bool = False
    held_by: tuple[str, ...] | None = None
    foreign_on_port: bool = False


class LogReader(Protocol):
    """Reads one server's log as it grows, in constant memory."""

    @property
    def stage(self) -> Stage:
        """The stage that the server has reached."""

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the log, cut anywhere."""

    def failure(self, ending: Ending) -> Failure | None:
        """Return why the server ended, or None for a healthy end.

        Rank by rank the first real cause counts, not the first traceback; an exit code alone
        proves nothing.
        """


@runtime_checkable
class ServingLog(Protocol):
    """What a log reader may tell besides, of how requests were served."""

    @property
    def accept_length_mean(self) -> float | None:
        """Mean accept length over the decode lines; None without speculation."""

    @property
    def share_without_graph(self) -> float | None:
        """Share of the decode lines without a CUDA graph; None if no line says."""

    @property
    def retractions(self) -> int:
        """Requests that were sent back because the KV pool was full."""


class Engine(Protocol):
    """One serving engine; implementations hold no state."""

    name: str

    def argv(self, launch: Launch, *, port: int, nccl_port: int) -> list[str]:
        """Return the whole command line; no shell ever sees it."""

    def environment(self, launch: Launch) -> dict[str, str]:
        """Return the variables that a server of this engine is started with, the launch's own
        among them; they win over what the machine has set."""

    def canonical(self, launch: Launch) -> Launch:
        """Return the launch that the engine makes of this one: equal results are one launch.

        Flags that equal their defaults are dropped, aliases resolved, values that the engine
        would overwrite set to what it makes of them.
        """

    def refuse(self, launch: Launch) -> str | None:
        """Return why this launch cannot work, in a sentence, or None."""

    def unknown_flags(self, flags: Sequence[str]) -> dict[str, str | None]:
        """Return each flag that no supported version knows -> the nearest known one."""

    def log_reader(self) -> LogReader:
        """Return a fresh reader."""

    def health_probe(self) -> ControlRequest:
        """Return a request that is answered 200 only after the engine's own warm-up."""

    def ready_probe(self) -> ControlRequest:
        """Return a request that is answered 200 only after one real token was generated."""

    def info_probe(self) -> ControlRequest:
        """Return the request whose JSON answer `read_back` reads."""

    def read_back(self, launch: Launch, info: Mapping[str, object], *, port: int) -> ServerFacts:
        """Return what the server says it runs.

        Raises:
            LaunchFailed: The answer is another server's (class foreign_server), or the server
                lacks something that the launch asked for.
        """

    def flush_request(self) -> ControlRequest:
        """Return the request that empties caches and acceptance counters of an idle server."""

    def abort_request(self) -> ControlRequest:
        """Return the request that ends all running requests, so that a stop need not wait."""

    def stop_signal(self) -> int:
        """Return the signal that asks the server's leader to end."""


def flag_words(flags: Mapping[str, FlagValue]) -> list[str]:
    """Return flags as command-line words, sorted by name.

    True writes `--name`, False nothing, a tuple `--name a b`, all else `--name value`.
    """
    words: list[str] = []
    for name in sorted(flags):
        value = flags[name]
        if value is False:
            continue
        words.append(f"--{name}")
        if value is True:
            continue
        values = value if isinstance(value, tuple) else (value,)
        words.extend(str(v) for v in values)
    return words
