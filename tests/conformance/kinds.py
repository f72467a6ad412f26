"""The two servers that one suite is run on: the simulated one, and released SGLang on a CPU.

Both get the same command line after the program, so the suite does not know which it talks to.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sweeper.engines.base import flag_words
from sweeper.records import FlagValue
from tests.engines.simulated_launch import READY, Launched, free_port
from tests.real.installed import CPU_FLAGS, MODEL, NGRAM_FLAGS, python

#: Long enough for a start of the real one on a busy machine.
START_S = 240.0
MEASURED: Mapping[str, FlagValue] = {"enable-metrics": True, "decode-log-interval": 5}
NGRAM: Mapping[str, FlagValue] = {**NGRAM_FLAGS, "speculative-num-draft-tokens": 4}


@dataclass(frozen=True, slots=True)
class Kind:
    """How one of the servers is started."""

    name: str
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def program(self) -> list[str]:
        # A test that runs in the background of a shell ignores SIGINT, and so would the server.
        first = ["env", "--default-signal=INT"]
        if self.name == "simulated":
            return [*first, sys.executable, "-m", "sweeper.engines.simulated"]
        # Other tests on the machine measure time: this one yields to them.
        return [*first, "nice", "-n", "10", python("0.5.23"), "-m", "sglang.launch_server"]


SIMULATED = Kind(
    "simulated",
    {
        "SWEEPER_SIM_CALIBRATION": "small-1gpu",
        "SWEEPER_SIM_TIME_SCALE": "1",
        "SWEEPER_SIM_START_S": "2",
        "SWEEPER_SIM_CHILDREN": "1",
    },
)
REAL = Kind("real")
KINDS = [
    pytest.param(SIMULATED, id="simulated"),
    pytest.param(REAL, id="real", marks=pytest.mark.sglang),
]


def environment(kind: Kind, more: Mapping[str, str]) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SWEEPER_", "NCCL_"))}
    clean |= {"SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0", "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0"}
    return {**clean, "PYTHONUNBUFFERED": "1", **kind.env, **more}


def command(kind: Kind, port: int, flags: Mapping[str, FlagValue]) -> list[str]:
    given = {**CPU_FLAGS, **MEASURED, **flags}
    model = str(given.pop("model-path", MODEL))
    words = [*kind.program, "--model-path", model, *flag_words(given)]
    return [*words, "--host", "127.0.0.1", "--port", str(port), "--nccl-port", str(free_port())]


@contextmanager
def launch(
    kind: Kind,
    folder: Path,
    flags: Mapping[str, FlagValue],
    *,
    port: int | None = None,
    wait: str | None = READY,
    env: Mapping[str, str] | None = None,
) -> Iterator[Launched]:
    """Start a server in a process group of its own, and end the group."""
    port = port or free_port()
    path = folder / f"{kind.name}-{port}-{time.monotonic_ns()}.log"
    with path.open("wb") as out:
        process = subprocess.Popen(
            command(kind, port, flags),
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment(kind, env or {}),
            start_new_session=True,
        )
    launched = Launched(process, path, port)
    try:
        if wait is not None:
            launched.wait_for(wait, START_S)
        yield launched
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
