"""A Ray cluster of many raylets on this machine, in a process of its own.

As a script it takes commands on its input and answers each with a line:

    add GPUS [KIND]   -> the node's number
    kill NUMBER       -> killed NUMBER      its raylet gets SIGKILL
    behead            -> beheaded           the head's processes get it
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

#: For processes of the cluster and for drivers that join it: loopback only, no token to share.
ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
}
#: Ray's least.
_STORE_BYTES = 80 * 2**20


@dataclass
class Raylets:
    """A running cluster.

    Attributes:
        address: What a driver joins.
        dashboard: Where jobs are submitted; empty without one.
        process: The process that holds it.
    """

    address: str
    dashboard: str
    process: subprocess.Popen[str]

    def add(self, gpus: int, kind: str = "") -> int:
        """Add a node and return its number."""
        return int(self._say(f"add {gpus} {kind}"))

    def kill(self, number: int) -> None:
        """Kill a node's raylet; the head is number 0."""
        assert self._say(f"kill {number}") == f"killed {number}"

    def behead(self) -> None:
        """Kill the head: what keeps the cluster together, and its raylet."""
        assert self._say("behead") == "beheaded"

    def _say(self, command: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@contextlib.contextmanager
def raylets(*, dashboard: bool = False, before: Sequence[str] = ()) -> Iterator[Raylets]:
    """Start a cluster whose head has no GPUs; the words `before` its command may contain it."""
    temp = tempfile.mkdtemp(prefix="sw", dir="/tmp")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    process = subprocess.Popen(
        [
            *before,
            *(sys.executable, "-m", "tests.cluster.raylets"),
            *(["dashboard"] if dashboard else []),
        ],
        env={**environment, **ENVIRONMENT, "RAY_TMPDIR": temp},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address, _, url = process.stdout.readline().strip().partition(" ")
        assert address
        yield Raylets(address, url, process)
    finally:
        process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()
        shutil.rmtree(temp, ignore_errors=True)


def main() -> None:
    """Run the cluster until the input ends."""
    # Ray prints to stdout, which is for answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 1,
            "num_gpus": 0,
            "object_store_memory": _STORE_BYTES,
            "include_dashboard": "dashboard" in sys.argv,
            "dashboard_port": _free_port(),
            # Ray's fixed default lies among the ports that any connection may have; a head whose
            # agent does not get it takes no jobs.
            "dashboard_agent_listen_port": 0,
            "_system_config": {
                "health_check_initial_delay_ms": 0,
                "health_check_period_ms": 1000,
                "health_check_timeout_ms": 5000,
                "health_check_failure_threshold": 5,
            },
        },
    )
    nodes: list[Any] = [cluster.head_node]
    print(cluster.address, cluster.webui_url or "", file=answers)
    for line in sys.stdin:
        match line.split():
            case ["add", gpus, *kinds]:
                node = cluster.add_node(
                    num_cpus=1,
                    num_gpus=int(gpus),
                    object_store_memory=_STORE_BYTES,
                    resources={f"accelerator_type:{kind}": 1 for kind in kinds},
                )
                nodes.append(node)
                print(len(nodes) - 1, file=answers)
            case ["kill", number]:
                _kill(nodes[int(number)], "raylet")
                print(f"killed {number}", file=answers)
            case ["behead"]:
                _kill(nodes[0], "gcs_server", "raylet")
                print("beheaded", file=answers)
    cluster.shutdown()  # type: ignore[no-untyped-call]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _kill(node: Any, *kinds: str) -> None:
    for kind in kinds:
        for info in node.all_processes[kind]:
            os.kill(info.process.pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
