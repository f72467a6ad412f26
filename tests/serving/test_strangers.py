"""Servers of someone else on our port."""

import argparse
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest

from sweeper.errors import FailureClass
from sweeper.serving import Place, Ports, reserve_ports
from tests.serving.odd_server import Handler
from tests.serving.plain import launch_of
from tests.serving.watching import Start, failure_of, marked


class StrangerServer:
    """A server of someone else on our port, which answers all that ours would."""

    def __init__(self, block: Ports) -> None:
        self._block = block
        self._server: ThreadingHTTPServer | None = None

    def take_port(self, _: object = None) -> None:
        if self._server is None:

            class Quiet(Handler):
                def log_message(self, format: str, *args: object) -> None:
                    pass

            Quiet.arguments = argparse.Namespace(port=self._block.port, fault="none")
            self._server = ThreadingHTTPServer(("127.0.0.1", self._block.port), Quiet)
            threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def leave(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


@pytest.fixture
def stranger() -> Iterator[tuple[Ports, StrangerServer]]:
    block = reserve_ports()
    server = StrangerServer(block)
    yield block, server
    server.leave()


def test_a_port_that_is_taken_before_is_a_port_conflict(
    started: Start, stranger: tuple[Ports, StrangerServer], place: Place
) -> None:
    block, server = stranger
    server.take_port()
    failure = failure_of(lambda: started(launch_of(), block=block))
    assert failure.kind is FailureClass.PORT_CONFLICT
    assert str(block.port) in failure.line
    assert not place.log_path.exists()


def test_a_stranger_that_answers_is_not_taken_for_the_server(
    started: Start, stranger: tuple[Ports, StrangerServer], place: Place
) -> None:
    block, server = stranger
    failure = failure_of(
        lambda: started(launch_of("leaves-its-port"), block=block, on_stage=server.take_port)
    )
    assert failure.kind is FailureClass.FOREIGN_SERVER
    assert marked(place.mark) == []


def test_a_server_that_loses_its_port_names_the_stranger(
    started: Start, stranger: tuple[Ports, StrangerServer]
) -> None:
    block, server = stranger
    launch = launch_of("loses-its-port", seconds=0.2)
    failure = failure_of(lambda: started(launch, block=block, on_stage=server.take_port))
    assert failure.kind is FailureClass.FOREIGN_SERVER
