"""Starts simulated servers for tests: real processes, real HTTP on 127.0.0.1."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

READY = "The server is fired up and ready to roll!"
EAGLE3 = (
    "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/models/eagle3-kimi",
)  # fmt: skip


def shape(steps: int, topk: int, tokens: int) -> tuple[str, ...]:
    """Return the flags of an EAGLE-3 draft of this shape."""
    return (
        *EAGLE3,
        f"--speculative-num-steps={steps}",
        f"--speculative-eagle-topk={topk}",
        f"--speculative-num-draft-tokens={tokens}",
    )


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@dataclass(slots=True)
class Launched:
    """A simulated server's process, its log and its port."""

    process: subprocess.Popen[bytes]
    path: Path
    port: int

    @property
    def log(self) -> str:
        return self.path.read_bytes().decode(errors="replace")

    def wait_for(self, text: str, limit_s: float = 60.0) -> None:
        """Wait until the log holds `text`."""
        end = time.monotonic() + limit_s
        while text not in self.log:
            assert time.monotonic() < end, f"no {text!r} in:\n{self.log[-3000:]}"
            if self.process.poll() is not None and text not in self.log:
                raise AssertionError(f"ended with {self.process.returncode}:\n{self.log[-3000:]}")
            time.sleep(0.02)

    def ended(self, limit_s: float = 60.0) -> int:
        """Wait for the process's end and return its status."""
        return self.process.wait(limit_s)

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = 60.0,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, str]:
        """Send a request and return status and text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            data = None if body is None else json.dumps(body)
            kind = {} if body is None else {"Content-Type": "application/json"}
            connection.request(method, path, data, {**kind, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request that succeeds and return its JSON."""
        status, text = self.request(method, path, body)
        assert status == 200, text
        return json.loads(text)

    def stream(self, path: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Stream and return all events; the last line must be [DONE]."""
        status, text = self.request("POST", path, {**body, "stream": True})
        assert status == 200, text
        events = [e.removeprefix("data: ") for e in text.split("\n\n") if e]
        assert events[-1] == "[DONE]"
        return [json.loads(e) for e in events[:-1]]


@contextmanager
def launch(
    folder: Path,
    *flags: str,
    env: Mapping[str, str] | None = None,
    port: int | None = None,
    wait: str | None = READY,
    start_s: float = 0.0,
    scale: float = 20.0,
    noise: float = 0.0,
) -> Iterator[Launched]:
    """Start a server in a process group of its own, and end the group."""
    port = port or free_port()
    words = [
        sys.executable,
        "-m",
        "sweeper.engines.simulated",
        "--model-path",
        "/models/Kimi-K2.5",
    ]
    words += ["--port", str(port), "--tp-size", "8", *flags]
    path = folder / f"server-{port}-{time.monotonic_ns()}.log"
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SWEEPER_", "NCCL_"))}
    clean |= {
        "SWEEPER_SIM_START_S": str(start_s),
        "SWEEPER_SIM_TIME_SCALE": str(scale),
        "SWEEPER_SIM_NOISE": str(noise),
        "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
        **(env or {}),
    }
    with path.open("wb") as out:
        process = subprocess.Popen(
            words, stdout=out, stderr=subprocess.STDOUT, env=clean, start_new_session=True
        )
    launched = Launched(process, path, port)
    try:
        if wait is not None:
            launched.wait_for(wait)
        yield launched
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def generate_body(prompt: str, tokens: int) -> dict[str, Any]:
    """Return a greedy `/generate` body of a fixed length."""
    params = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return {"text": prompt, "sampling_params": params}


def run(words: Sequence[str], env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a server that ends by itself; return its status and its standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "sweeper.engines.simulated", *words],
        env={**os.environ, "SWEEPER_SIM_START_S": "0", **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr
