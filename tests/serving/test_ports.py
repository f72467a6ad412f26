"""Ports of one server, kept from others."""

import contextlib
import itertools
import os
import socket
import subprocess
import sys

import pytest

from sweeper.serving.ports import (
    BLOCK,
    HIGHEST,
    LOWEST,
    accepts,
    is_taken,
    quiet_bases,
    reserve_ports,
    stranger_on,
)


def test_blocks_of_parallel_servers_do_not_touch() -> None:
    blocks = [reserve_ports() for _ in range(8)]
    ports = sorted(block.port for block in blocks)
    assert all(later - earlier >= BLOCK for earlier, later in itertools.pairwise(ports))
    for block in blocks:
        assert block.port < block.nccl_port < block.port + 100
        assert not is_taken(block.port)
        block.release()
        block.release()


def test_the_first_blocks_are_where_no_connection_is_given_a_port() -> None:
    blocks = [reserve_ports() for _ in range(4)]
    # A thousand connections, as a node's ranks have them, meet none of the ports.
    with contextlib.ExitStack() as held:
        given = set()
        for _ in range(1000):
            connection = held.enter_context(socket.socket())
            connection.bind(("127.0.0.1", 0))
            given.add(connection.getsockname()[1])
        for block in blocks:
            assert given.isdisjoint(range(block.port, block.port + BLOCK - 1))
            block.release()


@pytest.mark.parametrize(
    ("given_away", "wanted"),
    [
        ((32_768, 60_999), [20_900, 22_000, 23_100, 24_200, 25_300, 26_400, 27_500, 28_600]),
        ((25_000, 27_000), [20_900, 22_000, 23_100, 27_500, 28_600]),
        ((1024, 65_535), []),
        ((15_000, 21_999), [22_000, 23_100, 24_200, 25_300, 26_400, 27_500, 28_600]),
    ],
)
def test_quiet_blocks_keep_out_of_what_the_system_gives_away(
    given_away: tuple[int, int], wanted: list[int]
) -> None:
    assert list(quiet_bases(given_away)) == wanted


def test_no_port_is_so_high_that_one_derived_from_it_is_none() -> None:
    # Beyond the quiet blocks the system chooses at random; a fifth of its ports are higher.
    quiet = [reserve_ports() for _ in quiet_bases((0, 0))]
    for _ in range(60):
        block = reserve_ports()
        assert block.port <= HIGHEST == 55_535
        block.release()
    for block in quiet:
        block.release()


def test_a_large_node_has_blocks_for_all_of_its_servers() -> None:
    blocks = [reserve_ports() for _ in range(32)]
    ports = sorted(block.port for block in blocks)
    for block in blocks:
        block.release()
    assert all(later - earlier >= BLOCK for earlier, later in itertools.pairwise(ports))
    assert ports[0] >= LOWEST
    assert ports[-1] <= HIGHEST


def test_a_block_is_kept_from_other_processes_until_its_owner_is_gone() -> None:
    script = "from sweeper.serving.ports import reserve_ports as r; b = r(); print(b.port, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        guard = int(other.stdout.readline()) - 1
        assert is_taken(guard)
        other.kill()
    assert not is_taken(guard)


def test_a_listener_takes_a_port_and_a_closed_connection_does_not() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert not accepts(port)
        listener.listen()
        assert accepts(port)
        assert is_taken(port)
        with socket.create_connection(("127.0.0.1", port)):
            connection, _ = listener.accept()
            connection.close()
    assert not accepts(port)
    assert not is_taken(port)


def test_a_stranger_is_a_listener_that_is_not_below_the_supervisor() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert stranger_on(port, os.getpid()) is None  # nobody listens
        listener.listen()
        assert stranger_on(port, os.getpid()) == os.getpid()
        assert stranger_on(port, os.getppid()) is None
        # A supervisor that has not told its pid owns nothing yet.
        assert stranger_on(port, 0) == os.getpid()
