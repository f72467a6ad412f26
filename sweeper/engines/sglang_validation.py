"""Runs inside SGLang's own Python: what does its `ServerArgs` say of each command line?

Sweeper starts this file's text there with `python -c`, since SGLang's environment may lack
Sweeper, and importing SGLang changes the process that does it. Standard library only.

    version                              -> the installed version, or status 3
    (standard input)  {"settings": [{"argv": [...], "env": {...}}, ...], "at_once": 4}
    (standard output) {"index": 0, "kind": "ok", "text": ""}, a line each, in any order

`kind` is "ok", "usage" for an error of the command line, or the name of the exception. SGLang is
imported once; each setting is resolved in a fork of its own, because resolving changes the
record, the environment and the loggers. Most of what resolving takes are modules that it imports
when it first needs them: a first fork finds out which, and they are imported before the others.
"""

import contextlib
import io
import json
import os
import sys
import traceback
from importlib import import_module, metadata
from typing import Any

_NOT_INSTALLED = 3


def judge(server_args: Any, argv: list[str]) -> tuple[str, str]:
    """Return kind and text for one command line.

    0.5.15 resolves while it parses, 0.5.23 in a step of its own; both check the rest apart.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            # As the server does first: a plugin may add to what a flag takes, or refuse.
            with contextlib.suppress(ImportError):
                import_module("sglang.srt.plugins").load_plugins()
            args = server_args.prepare_server_args(argv)
            if hasattr(args, "resolve_once"):
                args.resolve_once()
            args.check_server_args()
    except SystemExit as end:
        last = (said.getvalue().strip().splitlines() or [""])[-1]
        if not last and isinstance(end.code, str):
            return "Refused", end.code
        return "usage", last.rpartition("error: ")[2]
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the answer
        return type(error).__name__, _text_of(error)
    return "ok", ""


def _text_of(error: BaseException) -> str:
    """Return its message, or for a bare assertion what was asserted."""
    text = str(error).strip()
    if text:
        return text
    frames = traceback.extract_tb(error.__traceback__)
    return (frames[-1].line or "") if frames else ""


def _answer(out: int, index: int, server_args: Any, setting: dict[str, Any]) -> None:
    os.environ.update(setting["env"])
    kind, text = judge(server_args, setting["argv"])
    line = json.dumps({"index": index, "kind": kind, "text": text[:600]})
    # One write of less than a pipe's atomic size (4096 bytes): lines of several forks stay whole.
    os.write(out, line.encode() + b"\n")


def _import_what_it_needs(server_args: Any, setting: dict[str, Any]) -> None:
    """Import what judging one setting imports: 1.0 to 1.6 s of a core, else paid by each fork."""
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        try:
            judge(server_args, setting["argv"])
            with os.fdopen(write_end, "w") as names:
                json.dump(list(sys.modules), names)
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as names, contextlib.suppress(ValueError):
        for name in json.load(names):
            if name not in sys.modules:
                with contextlib.suppress(Exception):
                    import_module(name)
    os.wait()


def main(argv: list[str]) -> int:
    """Answer what standard input asks; return the exit status."""
    if argv == ["version"]:
        try:
            sys.stdout.write(metadata.version("sglang") + "\n")
        except metadata.PackageNotFoundError:
            return _NOT_INSTALLED
        return 0
    request = json.load(sys.stdin)
    out = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    server_args = import_module("sglang.srt.server_args")
    os.dup2(nothing, 2)
    if len(request["settings"]) > 1:
        _import_what_it_needs(server_args, request["settings"][0])
    running = 0
    for index, setting in enumerate(request["settings"]):
        if running >= request["at_once"]:
            os.wait()
            running -= 1
        if os.fork() == 0:
            try:
                _answer(out, index, server_args, setting)
            finally:
                os._exit(0)
        running += 1
    for _ in range(running):
        os.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
