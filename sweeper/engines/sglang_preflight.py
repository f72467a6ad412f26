"""Asks the installed SGLang itself which settings it refuses, before any of them is launched.

    command -> python_of -> installed_version -> validate -> Verdicts (cached by version)

A start that SGLang refuses costs ten seconds, one that it refuses on eight GPUs of a cluster a
turn of that slot; and a newer SGLang than the tables know refuses other things. One subprocess
imports SGLang once and forks for each setting: about 7 s, and some 0.05 s of one core for each.

Only words about the setting count. What depends on the machine that is asked, such as a model
that is not there or a GPU that it lacks, refuses nothing: the node may be another one.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from sweeper.engines.sglang_flags import VERSIONS

#: Exceptions that SGLang's validation raises about the flags themselves; "usage" is argparse,
#: "Refused" a plugin's.
_ABOUT_FLAGS = frozenset(
    {"usage", "ValueError", "AssertionError", "NotImplementedError", "TypeError", "Refused"}
)
#: What a machine without the GPU says of backends that need it.
_ABOUT_GPU = re.compile(
    r"\b(hopper|blackwell|ampere|sm\d+|gpus?|cuda|compute capab|accelerator)", re.IGNORECASE
)
_MODULE = ["-m", "sglang.launch_server"]
#: Real seconds for the import, and for one setting on one core, at most.
_IMPORT_S, _EACH_S = 180.0, 10.0
_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """One setting as the server would be started with it.

    Attributes:
        argv: Flags and values after the program.
        env: The variables of its environment that the launch sets.
        models: Paths whose `config.json` the validation reads.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """What the installed SGLang says.

    Attributes:
        refused: Index of a command line -> why SGLang refuses it.
        asked: How many it was asked about; the others came from the cache.
        unanswered: How many got no answer that says anything of the setting.
        problem: Why it could not be asked, in a sentence; empty if it could.
    """

    refused: Mapping[int, str]
    asked: int = 0
    unanswered: int = 0
    problem: str = ""


def python_of(command: Sequence[str]) -> tuple[str, ...] | None:
    """Return the interpreter of a command `PYTHON [OPTIONS] -m sglang.launch_server`.

    None for other programs (a container, a wrapper), and for one that is not on this machine.
    """
    words = list(command)
    if words[-2:] != _MODULE or not Path(words[0]).name.startswith("python"):
        return None
    if words[0] == "python":
        words[0] = sys.executable
    return tuple(words[:-2]) if shutil.which(words[0]) else None


def installed_version(
    python: Sequence[str], env: Mapping[str, str], *, limit_s: float = 30.0
) -> str | None:
    """Return the version of the SGLang that `python` has, or None; SGLang is not imported.

    Args:
        python: The interpreter and its options.
        env: Variables that every server is started with; PYTHONPATH may be among them.
        limit_s: Real seconds to wait.
    """
    try:
        done = subprocess.run(
            [*python, "-c", _program(), "version"],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def version_warning(version: str) -> str | None:
    """Return what to tell of a version outside the range that was tested, or None."""
    number, first, last = (_number(v) for v in (version, VERSIONS[0], VERSIONS[-1]))
    if first <= number <= last:
        return None
    side = "older than" if number < first else "newer than"
    bound = VERSIONS[0] if number < first else VERSIONS[-1]
    return (
        f"SGLang {version} is {side} {bound}, the end of the range that Sweeper was tested with; "
        "its own parser and validation decide about flags"
    )


def validate(
    python: Sequence[str],
    version: str,
    lines: Sequence[CommandLine],
    *,
    env: Mapping[str, str],
    gpus_present: bool,
    cache: Path | None,
    cores: int,
    limit_s: float | None = None,
) -> Verdicts:
    """Ask SGLang about command lines; what it said before of the same ones is not asked again.

    Args:
        python: The interpreter that has SGLang.
        version: Its version, as `installed_version` told.
        lines: What is asked about.
        env: Variables that every server is started with.
        gpus_present: Whether this machine has the GPUs; without them, words about GPUs refuse
            nothing.
        cache: Folder where answers are kept; None for none.
        cores: How many may be asked about at once.
        limit_s: Real seconds to wait; enough for a slow disk by default.
    """
    path = None if cache is None else cache / f"sglang-{version}.json"
    known = _read(path)
    keys = [_key(python, line, gpus_present=gpus_present) for line in lines]
    new = [index for index, key in enumerate(keys) if key not in known]
    problem = ""
    if new:
        at_once = max(1, min(cores, _AT_ONCE))
        if limit_s is None:
            limit_s = _IMPORT_S + _EACH_S * len(new) / at_once
        request = {
            "settings": [{"argv": lines[i].argv, "env": dict(lines[i].env)} for i in new],
            "at_once": at_once,
        }
        answers, problem = _ask(python, env, request, limit_s)
        known |= {keys[new[at]]: answer for at, answer in answers.items()}
        if answers:
            _write(path, known)
    refused, unanswered = {}, 0
    for index, key in enumerate(keys):
        kind, text = known.get(key, ("", ""))
        if kind == "ok":
            continue
        is_about_gpu = not gpus_present and _ABOUT_GPU.search(text) is not None
        if kind in _ABOUT_FLAGS and not is_about_gpu:
            refused[index] = f"SGLang {version} refuses it: {text or kind}"
        else:
            unanswered += 1
    return Verdicts(refused=refused, asked=len(new), unanswered=unanswered, problem=problem)


def _ask(
    python: Sequence[str], env: Mapping[str, str], request: Mapping[str, object], limit_s: float
) -> tuple[dict[int, tuple[str, str]], str]:
    """Return index -> (kind, text) as far as it answered, and what went wrong."""
    try:
        process = subprocess.Popen(
            [*python, "-c", _program()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **env, "HF_HUB_OFFLINE": "1"},
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        return {}, f"cannot be started: {error}"
    problem = ""
    try:
        out, said = process.communicate(json.dumps(request), timeout=limit_s)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        out, said = process.communicate()
        problem = f"no answer within {limit_s:g} s"
    except BaseException:
        _kill_group(process)
        raise
    if process.returncode > 0:
        last = (said.strip().splitlines() or [f"status {process.returncode}"])[-1]
        problem = f"cannot be imported: {last}"
    return _parse(out), problem


def _kill_group(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _parse(text: str) -> dict[int, tuple[str, str]]:
    found = {}
    for line in text.splitlines():
        with suppress(ValueError, KeyError, TypeError):
            answer = json.loads(line)
            found[int(answer["index"])] = (str(answer["kind"]), str(answer["text"]))
    return found


def _program() -> str:
    return (resources.files("sweeper.engines") / "sglang_validation.py").read_text("utf-8")


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _key(python: Sequence[str], line: CommandLine, *, gpus_present: bool) -> str:
    """Return what an answer depends on, beside the version, as a hash: it may hold secrets."""
    configs = []
    for model in line.models:
        try:
            configs.append(hashlib.sha256((Path(model) / "config.json").read_bytes()).hexdigest())
        except OSError:
            configs.append("")
    parts = [_program(), *python, *line.argv, sorted(line.env.items()), configs, gpus_present]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _read(path: Path | None) -> dict[str, tuple[str, str]]:
    if path is None:
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
        return {str(key): (str(kind), str(text)) for key, (kind, text) in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _write(path: Path | None, known: Mapping[str, tuple[str, str]]) -> None:
    if path is None:
        return
    # An answer that is not kept is asked for again; that is all.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=path.name, delete=False, encoding="utf-8"
        ) as new:
            json.dump(known, new)
        Path(new.name).replace(path)
