"""The engine that drives `odd_server.py`: as little as the Engine protocol allows."""

import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sweeper.engines.base import ControlRequest, Ending, Engine, LogReader, flag_words
from sweeper.errors import Failure, FailureClass, LaunchFailed, Stage
from sweeper.records import FlagValue, Launch, ServerFacts

SERVER = Path(__file__).parent / "odd_server.py"


class PlainReader:
    """Reads `stage NAME` and `cause TEXT`."""

    def __init__(self) -> None:
        self.stage = Stage.ARGS
        self.bytes_read = 0
        self._rest = b""
        self._cause: str | None = None

    def feed(self, data: bytes) -> None:
        self.bytes_read += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            word, _, text = line.decode(errors="replace").partition(" ")
            if word == "stage":
                self.stage = Stage(text)
            elif word == "cause":
                self._cause = text

    def failure(self, ending: Ending) -> Failure | None:
        code = ending.exit_code
        if self._cause is not None:
            kind = FailureClass.CRASH_KERNEL
            if ending.held_by:
                kind = FailureClass.GPU_MEMORY_NOT_FREE
            return Failure(kind=kind, stage=self.stage, line=self._cause, exit_code=code)
        if code == -9 and not ending.killed_by_us:
            line = "ended by signal 9"
            return Failure(kind=FailureClass.KILLED, stage=self.stage, line=line, exit_code=code)
        return None


class PlainEngine:
    """Starts `odd_server.py` and asks it simple questions."""

    name = "plain"

    def argv(self, launch: Launch, *, port: int, nccl_port: int) -> list[str]:
        ports = ["--port", str(port), "--nccl-port", str(nccl_port)]
        return [*launch.command, *ports, *flag_words(launch.flags)]

    def environment(self, launch: Launch) -> dict[str, str]:
        return dict(launch.env)

    def canonical(self, launch: Launch) -> Launch:
        return launch

    def refuse(self, launch: Launch) -> str | None:
        return None

    def unknown_flags(self, flags: Sequence[str]) -> dict[str, str | None]:
        return {}

    def log_reader(self) -> LogReader:
        return PlainReader()

    def health_probe(self) -> ControlRequest:
        return ControlRequest(method="GET", path="/health")

    def ready_probe(self) -> ControlRequest:
        return ControlRequest(method="POST", path="/generate", json={"text": "a"})

    def info_probe(self) -> ControlRequest:
        return ControlRequest(method="GET", path="/info")

    def read_back(self, launch: Launch, info: Mapping[str, object], *, port: int) -> ServerFacts:
        if info.get("port") != port:
            line = f"it says that its port is {info.get('port')}"
            raise LaunchFailed(
                Failure(kind=FailureClass.FOREIGN_SERVER, stage=Stage.WARMUP, line=line)
            )
        return ServerFacts(version="1", flags={}, rewritten={}, simulated=True)

    def flush_request(self) -> ControlRequest:
        return ControlRequest(method="POST", path="/flush")

    def abort_request(self) -> ControlRequest:
        return ControlRequest(method="POST", path="/abort")

    def stop_signal(self) -> int:
        return signal.SIGTERM


_: Engine = PlainEngine()


def launch_of(fault: str = "none", **flags: FlagValue) -> Launch:
    words = {name.replace("_", "-"): value for name, value in flags.items()}
    return Launch(
        engine="plain",
        command=(sys.executable, str(SERVER)),
        model="none",
        gpus=0,
        flags={"fault": fault, **words},
    )
