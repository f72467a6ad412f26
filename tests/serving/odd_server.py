"""A small server with one fault, as a script: `odd_server.py --port P --fault NAME ...`.

It prints `stage NAME` as it comes up and `cause TEXT` before it dies, for `PlainReader`.
Routes: POST /generate makes a token, GET /info says what runs, POST /abort ends generations.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def say(line: str) -> None:
    print(line, flush=True)


class Handler(BaseHTTPRequestHandler):
    """Answers in the way of the fault."""

    arguments: argparse.Namespace
    generations = 0
    checks = 0
    hold = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/info":
            self.answer(
                {"port": self.arguments.port, "argv": sys.argv[1:], "env": dict(os.environ)}
            )
            if self.arguments.fault == "dies-when-ready":
                say("cause a kernel failed")
                os._exit(3)
        elif self.path == "/health" and self.arguments.fault == "warms-up":
            Handler.checks += 1
            self.answer({"status": "starting"}, 503 if Handler.checks <= 3 else 200)
        elif self.path == "/slow":
            time.sleep(600)
        elif self.path == "/die":
            os._exit(4)
        elif self.path == "/leave":
            say("stage shutdown")
            os._exit(0)
        else:
            self.answer({"status": "healthy"})

    def do_POST(self) -> None:
        fault = self.arguments.fault
        Handler.generations += 1
        if fault == "warms-up" and Handler.checks <= 3:
            os._exit(5)  # it was disturbed
        if self.path == "/abort":
            say("aborted")
            Handler.hold.set()
            self.answer({})
        elif fault == "never-answers":
            time.sleep(600)
        elif fault == "never-makes-a-token":
            self.answer({"error": "starting"}, 503)
        elif fault == "refuses" or (fault == "refuses-twice" and Handler.generations <= 2):
            self.answer({"error": "unauthorised"}, 401)
        else:
            self.answer({"text": "a"})

    def answer(self, body: object, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        say(f"INFO: {format % args}")


def hold_memory(folder: Path, gpu: int, mib: int, pid: int) -> None:
    starttime = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    folder.mkdir(exist_ok=True)
    (folder / f"{gpu}-{pid}-{starttime}").write_text(str(mib))


def flood() -> None:
    while True:
        sys.stdout.write(("x" * 200 + "\n") * 200)
        time.sleep(0.002)  # some 20 MB a second


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--nccl-port", type=int)
    parser.add_argument("--model")
    parser.add_argument("--fault", default="none")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--compiler")
    parser.add_argument("--gpu-folder", type=Path)
    arguments = Handler.arguments = parser.parse_args()
    if arguments.gpu_folder:
        hold_memory(arguments.gpu_folder, 0, 100_000, os.getpid())
    say("stage load")
    match arguments.fault:
        case "silent":
            time.sleep(600)
        case "dies-in-start":
            say("cause does not fit")
            sys.exit(7)
        case "dies-without-a-word":
            os.kill(os.getpid(), signal.SIGKILL)
        case "shows-a-cause-and-hangs":
            say("cause a rank is missing")
            time.sleep(600)
        case "shows-progress":
            end = time.monotonic() + arguments.seconds
            while time.monotonic() < end:
                print(f"compiling {time.monotonic():.2f}", end="\r", flush=True)
                time.sleep(0.02)
        case "one-long-line":
            say("y" * 1_000_000)
        case "long-log":
            for number in range(200_000):
                sys.stdout.write(f"line {number} of a long log that someone must read\n")
        case "flood":
            threading.Thread(target=flood, daemon=True).start()
        case "ignores-sigterm":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "leaves-its-port":
            say("stage warmup")
            time.sleep(600)
        case "loses-its-port":
            time.sleep(arguments.seconds)
            say("OSError: [Errno 98] address already in use")
            sys.exit(3)
        case "leaves-a-daemon":
            subprocess.Popen(["sleep", "600"], start_new_session=True)
        case "compiles":
            subprocess.run([arguments.compiler, str(arguments.seconds)], check=True)
        case "compiles-when-ready":
            subprocess.Popen([arguments.compiler, "600"])
        case "late":
            time.sleep(arguments.seconds)
    if arguments.fault != "ignores-sigterm":
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    server = ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler)
    say("stage warmup")
    server.serve_forever()


if __name__ == "__main__":
    main()
