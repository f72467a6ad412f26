"""A place for a server, and a start that proves that nothing was left."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeper.clock import Clock
from sweeper.records import Launch, Limits
from sweeper.serving import Gpus, NoGpus, Place, Server, start
from tests.serving.plain import PlainEngine
from tests.serving.watching import PATIENT, Start, marked, wait_for


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(
        gpu_ids=(),
        log_path=tmp_path / "logs" / "server.log",
        mark=f"test-{tmp_path.name}-{os.getpid()}",
    )


@pytest.fixture
def started(place: Place) -> Iterator[Start]:
    """`start` with patient limits; whatever it left alive fails the test."""
    servers: list[Server] = []

    def begin(
        launch: Launch,
        *,
        limits: Limits = PATIENT,
        clock: Clock = Clock(),  # noqa: B008
        gpus: Gpus = NoGpus(),  # noqa: B008
        place: Place = place,
        **more: object,
    ) -> Server:
        server = start(
            PlainEngine(),
            launch,
            place=place,
            gpus=gpus,
            limits=limits,
            clock=clock,
            **more,  # type: ignore[arg-type]
        )
        servers.append(server)
        return server

    yield begin
    for server in servers:
        server.stop()
    assert wait_for(lambda: not marked(place.mark)), "something of the server lives"
