"""Compares streaming clients on one machine in one run: `python -m benchmarks.client`.

A server in a process of its own (`client_server.py`) sends `--streams` streams (200), first paced
at `--rate` chunks a second each (100), then as fast as the client takes them. Compared are

    sweeper      the client of `sweeper.bench`, aiohttp on uvloop
    requests     one thread a stream, iter_lines
    httpx        asyncio, aiter_lines
    sglang, guidellm, aiperf      the tools themselves (`client_peers.py`)

of which the last four need --peer NAME=PYTHON, the Python of an environment that has them. Of
each, as the best of `--runs`:

    cpu us/chunk   CPU time of the whole process tree, start to end, for one more chunk: a run less
                   one of the same streams with few chunks. What a tool does with chunks after
                   they came counts, and what it does once does not.
    while open     CPU time of the tree while streams were open, by chunks
    lag p50, p99   from writing to arrival, chunk by chunk; a dash where a tool does not tell
    held           chunks a second by those asked for
    chunks/s       taken unpaced, until the last client's socket was read to its end

On a machine that does other work the times are upper bounds; the ratios are what to look at.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.client_own import CLIENTS
from benchmarks.client_peers import PEERS, ROOT, Run, environment

#: Chunks a stream of the run whose CPU time is taken off.
_FEW = 10
_LIMIT_S = 300.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One client.

    Attributes:
        name: What it is called.
        command: Makes its command line.
        lags: Reads the lags in ns that it told; None if it tells none.
        env: Its environment.
    """

    name: str
    command: Callable[[Run], Sequence[str]]
    lags: Callable[[Path], list[float]] | None
    env: Mapping[str, str]
    python: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one run took.

    Attributes:
        cpu_s: CPU time of the whole tree.
        open_s: CPU time while streams were open.
        wall_s: From the first chunk's writing until all streams were read.
        lags_ns: Lag of each chunk; empty if not told.
    """

    cpu_s: float
    open_s: float
    wall_s: float
    lags_ns: Sequence[float]


def own_arm(name: str, python: Path) -> Arm:
    """Return one of the clients in Python, run by a Python that has what it imports."""

    def command(run: Run) -> list[str]:
        return [str(run.python), "-m", "benchmarks.client_own", name, run.url, str(run.streams)]

    def lags(folder: Path) -> list[float]:
        found: list[float] = np.load(folder / "stdout").tolist()
        return found

    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return Arm(name=name, command=command, lags=lags, env=env, python=python)


def peer_arm(name: str, python: Path) -> Arm:
    """Return one of the other tools."""
    peer = PEERS[name]
    env = environment(os.environ)
    return Arm(name=name, command=peer.command, lags=peer.lags, env=env, python=python)


@contextmanager
def serving(streams: int, rate: int, chunks: int) -> Iterator[tuple[str, Iterator[str]]]:
    """Run the server for one run; give its address and the lines that it prints."""
    words = [
        sys.executable,
        "-m",
        "benchmarks.client_server",
        str(streams),
        str(rate),
        str(chunks),
    ]
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}", iter(server.stdout)
        finally:
            server.kill()


def tree_cpu_s(root: int) -> float:
    """Return the CPU time so far of a process, its living descendants and those they reaped."""
    parents: dict[int, list[int]] = {}
    spent: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        parents.setdefault(int(fields[1]), []).append(pid)
        spent[pid] = sum(int(n) for n in fields[11:15]) * _TICK_S
    total, todo = 0.0, [root]
    while todo:
        pid = todo.pop()
        total += spent.get(pid, 0.0)
        todo += parents.get(pid, [])
    return total


def take(arm: Arm, streams: int, rate: int, chunks: int) -> Taken:
    """Run one client once.

    Raises:
        RuntimeError: It ended before all streams were read.
    """
    with (
        tempfile.TemporaryDirectory(prefix="sweeper-client-") as name,
        serving(streams, rate, chunks) as (url, lines),
    ):
        folder = Path(name)
        run = Run(python=arm.python, url=url, streams=streams, chunks=chunks, folder=folder)
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            process = subprocess.Popen(
                arm.command(run), stdout=out, stderr=err, env=arm.env, cwd=ROOT
            )
        seen: list[tuple[dict[str, int], float]] = []

        def watch() -> None:
            for line in lines:
                seen.extend([(json.loads(line), tree_cpu_s(process.pid))])

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        limit = threading.Timer(_LIMIT_S, process.kill)
        limit.start()
        _, status, usage = os.wait4(process.pid, 0)
        limit.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        for _ in range(50):
            if len(seen) < 2:
                time.sleep(0.1)
        if len(seen) < 2 or process.returncode:
            said = [(folder / n).read_bytes()[-1500:].decode() for n in ("stdout", "stderr")]
            raise RuntimeError(
                f"{arm.name} ended with {process.returncode} after {len(seen)} of 2 events: "
                + "\n".join(said)
            )
        (begun, before), (ended, after) = seen
        return Taken(
            cpu_s=usage.ru_utime + usage.ru_stime,
            open_s=after - before,
            wall_s=(ended["end_ns"] - begun["begin_ns"]) / 1e9,
            lags_ns=arm.lags(folder) if arm.lags else (),
        )


def figures(arm: Arm, streams: int, rate: int, seconds: float, runs: int) -> list[str]:
    """Return the cells of one client's row; of each figure the best of all runs."""
    paced, unpaced = int(rate * seconds), int(150 * seconds)
    few = min(take(arm, streams, rate, _FEW).cpu_s for _ in range(runs))
    slow = [take(arm, streams, rate, paced) for _ in range(runs)]
    fast = [take(arm, streams, 0, unpaced) for _ in range(runs)]
    lags = [np.percentile(t.lags_ns, [50, 99]) / 1e6 for t in slow if len(t.lags_ns)]

    def more(taken: Sequence[Taken], chunks: int) -> float:
        return (min(t.cpu_s for t in taken) - few) / streams / (chunks - _FEW) * 1e6

    def opened(taken: Sequence[Taken], chunks: int) -> float:
        return min(t.open_s for t in taken) / streams / chunks * 1e6

    p50, p99 = (f"{min(lag[i] for lag in lags):.2f}" if lags else "-" for i in (0, 1))
    return [
        f"{more(slow, paced):.1f}",
        f"{opened(slow, paced):.1f}",
        p50,
        p99,
        f"{paced / rate / min(t.wall_s for t in slow):.0%}",
        f"{more(fast, unpaced):.1f}",
        f"{opened(fast, unpaced):.1f}",
        f"{streams * unpaced / min(t.wall_s for t in fast):,.0f}",
    ]


def arms_of(names: Sequence[str], peers: Mapping[str, Path]) -> list[Arm]:
    """Return the clients to compare; those that are not installed are said and left out."""
    found = []
    for name in names:
        if name in PEERS and name in peers:
            found.append(peer_arm(name, peers[name]))
        elif name in PEERS or (
            name == "httpx" and name not in peers and not importlib.util.find_spec(name)
        ):
            print(f"{name}: not installed, left out")
        else:
            found.append(own_arm(name, peers.get(name, Path(sys.executable))))
    return found


def peer_of(text: str) -> tuple[str, Path]:
    """Read NAME=PYTHON."""
    name, _, python = text.partition("=")
    if name not in (*PEERS, "httpx") or not Path(python).is_file():
        raise argparse.ArgumentTypeError(f"no Python, or NAME is not httpx or {', '.join(PEERS)}")
    return name, Path(python).absolute()


def main() -> None:
    """Print the table, a row as soon as it is known."""
    every = [*CLIENTS, *PEERS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--peer", type=peer_of, action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--only", choices=every, nargs="+", default=every)
    options = parser.parse_args()
    pace = f"{options.streams} streams, {options.rate} chunks/s each"
    print(f"| {pace} | cpu us/chunk | while open | lag p50 ms | p99 ms | held | "
          "unpaced: cpu us/chunk | while open | chunks/s |")  # fmt: skip
    print("|---" * 9 + "|")
    for arm in arms_of(options.only, dict(options.peer)):
        try:
            cells = figures(arm, options.streams, options.rate, options.seconds, options.runs)
        except RuntimeError as error:
            cells = [f"failed: {error}"]
        print(f"| {arm.name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
