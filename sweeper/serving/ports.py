"""Ports of one server: from the operating system, in a block of its own.

A server opens more ports than it is given: SGLang derives hidden ones from its port, up to 1000
above it. So each server gets a block, and a guard holds it against other owners on the same
machine: a bound socket, which ends with its owner however that dies.
"""

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.serving.supervisor import all_processes, descendants

#: Ports of a block: SGLang derives ports from its own by adding up to 1000.
BLOCK = 1100
#: A server's port is no higher: SGLang 0.5.15 has a gRPC port 10,000 above it, and refuses to start
#: where that is none. A large node may have more servers than there are quiet blocks; so others
#: down to LOWEST are used too.
LOWEST, HIGHEST = 10_000, 65_535 - 10_000
#: Between the ports of Ray's workers (ray start, --min-worker-port) and those of Kubernetes'
#: services (--service-node-port-range).
_QUIET = range(20_000, 30_000)
#: From where to where Linux gives ports away unless told otherwise (ip-sysctl,
#: ip_local_port_range).
_GIVEN_AWAY = (32_768, 60_999)
_HOST = "127.0.0.1"
_LISTEN = "0A"  # include/net/tcp_states.h
_TRIES = 60


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one server.

    Attributes:
        port: Where it serves HTTP.
        nccl_port: Where its ranks meet.
    """

    port: int
    nccl_port: int
    _guard: socket.socket | None = field(default=None, repr=False, compare=False)

    def release(self) -> None:
        """Give the block back; harmless when done twice."""
        if self._guard is not None:
            self._guard.close()


def reserve_ports() -> Ports:
    """Return a free port and NCCL port in a block that no other owner here has.

    Raises:
        OSError: No block is free.
    """
    for base in _bases():
        # 50 above the port is below all that SGLang derives from it (it starts at 100).
        port, nccl_port = base + 1, base + 51
        guard = socket.socket()
        try:
            guard.bind((_HOST, base))
        except OSError:
            guard.close()
            continue
        if is_taken(port) or is_taken(nccl_port):
            guard.close()
            continue
        return Ports(port, nccl_port, guard)
    raise OSError(f"no free block of {BLOCK} ports from {LOWEST} to {HIGHEST}")


def _bases() -> Iterator[int]:
    """Yield where blocks begin: first where the system gives no ports away, then everywhere.

    A server binds its port minutes after it was chosen. Where connections are given their ports,
    one of its own ranks may have it by then.
    """
    yield from quiet_bases(_given_away())
    for _ in range(_TRIES):
        with socket.socket() as chosen:
            chosen.bind((_HOST, 0))
            base = chosen.getsockname()[1] // BLOCK * BLOCK
        if base >= LOWEST:
            yield base if base < HIGHEST else base - 10 * BLOCK
    yield from range(-(-LOWEST // BLOCK) * BLOCK, HIGHEST, BLOCK)


def quiet_bases(given_away: tuple[int, int]) -> Iterator[int]:
    """Yield the beginnings of blocks that no connection is given a port of.

    Args:
        given_away: The first and the last port that the system gives to connections.
    """
    first, last = given_away
    for base in range(-(-_QUIET.start // BLOCK) * BLOCK, _QUIET.stop - BLOCK + 1, BLOCK):
        if base + BLOCK <= first or base > last:
            yield base


def _given_away() -> tuple[int, int]:
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(first), int(last)
    except (OSError, ValueError):
        return _GIVEN_AWAY


def is_taken(port: int) -> bool:
    """Tell whether a server could not bind this port of the loopback address."""
    with socket.socket() as probe:
        # As servers do: a connection in TIME_WAIT is no obstacle, a listener is.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return True
    return False


def accepts(port: int) -> bool:
    """Tell whether something listens on this port of the loopback address."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        # From its own address, a try at a port that nobody has may be given that very port to
        # come from, and so reach itself (TCP's simultaneous open).
        with contextlib.suppress(OSError):
            probe.bind(("127.0.0.2", 0))
        if probe.connect_ex((_HOST, port)) != 0:
            return False
        return bool(probe.getsockname() != probe.getpeername())


def stranger_on(port: int, supervisor: int) -> int | None:
    """Return the pid of a process that listens on `port` and is no descendant of `supervisor`.

    None says that it is a descendant, or that this machine does not show who it is.
    """
    sockets = _listening_inodes(port)
    if not sockets:
        return None
    ours = {stat.pid for stat in descendants(supervisor)}
    if any(_holds(pid, sockets) for pid in ours):
        return None
    for stat in all_processes():
        if stat.pid not in ours and _holds(stat.pid, sockets):
            return stat.pid
    return None


def _listening_inodes(port: int) -> frozenset[str]:
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        # Columns: proc(5), /proc/net/tcp: 1 local address, 3 state, 9 inode.
        for line in lines:
            columns = line.split()
            if columns[3] == _LISTEN and int(columns[1].rsplit(":", 1)[1], 16) == port:
                found.add(f"socket:[{columns[9]}]")
    return frozenset(found)


def _holds(pid: int, sockets: frozenset[str]) -> bool:
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for descriptor in descriptors:
        # It may be closed by now; `suppress` goes on with the next.
        with contextlib.suppress(OSError):
            if str(descriptor.readlink()) in sockets:
                return True
    return False
