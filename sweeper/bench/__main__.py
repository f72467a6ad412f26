"""Measure a running server: `python -m sweeper.bench URL`.

Prints a table, or JSON with `--json`. A mistake of the person is one line and exit status 2, a
measurement that is no good one line and exit status 1.
"""

import argparse
import asyncio
import json
import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import aiohttp

from sweeper.bench.measure import Progress, measure
from sweeper.bench.process import ClientProcess
from sweeper.bench.workload import PATHS
from sweeper.clock import Clock
from sweeper.errors import BenchFailed, UserError
from sweeper.records import Limits, Measurement, Workload

_WORKLOADS = {
    "single": Workload(name="single", prompts="five", repeats=5),
    "busy": Workload(
        name="busy", prompts="mixed", concurrency=16, repeats=None, duration_s=60.0, warmup=16
    ),
}
_PROBE_S = 10.0
#: Options that stand for the workload's field of the same name.
_GIVEN = ("prompts", "max_tokens", "warmup", "temperature", "route", "chat_template", "seed")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure a server and print what it showed; return the exit status."""
    options = _parser().parse_args(argv)
    try:
        workload = _workload(options)
        url = options.url if "://" in options.url else f"http://{options.url}"
        api_key = os.environ.get(options.api_key_env)
        served = asyncio.run(_look_at(url.rstrip("/"), api_key, options.model))
        with ClientProcess.start() as client:
            measurement, requests = measure(
                client,
                url=url,
                model=served.model,
                workload=workload,
                gpus=options.gpus,
                clock=Clock(served.scale),
                limits=Limits(progress_s=options.progress_s),
                salt=options.salt or secrets.token_hex(8),
                api_key=api_key,
                on_progress=_show if sys.stderr.isatty() else _hide,
                flush="no" if options.no_flush else "try",
            )
    except UserError as error:
        print(f"sweeper.bench: {error}", file=sys.stderr)
        return 2
    except BenchFailed as error:
        print(f"sweeper.bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if options.json:
        about = {"model": served.model, "simulated": served.simulated}
        shown: dict[str, Any] = {**about, **asdict(measurement)}
        if options.requests:
            shown["all_requests"] = [asdict(request) for request in requests]
        print(json.dumps(shown, indent=2))
    else:
        print(table(served, measurement))
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What answers at the address.

    Attributes:
        model: The model's name.
        scale: Its engine seconds in a real second.
        simulated: Whether it says that it is the simulated server.
    """

    model: str
    scale: float = 1.0
    simulated: bool = False


def table(served: Served, measurement: Measurement) -> str:
    """Return the measurement as lines of name and value; what is missing shows as a dash."""
    lines = [f"{'model':<24}{served.model}"]
    if served.simulated:
        lines.insert(0, "SIMULATED: all figures are made up")
    for field in fields(measurement):
        value = getattr(measurement, field.name)
        items = value if isinstance(value, tuple) else (value,)
        lines.append(f"{field.name:<24}{' '.join(map(_cell, items)) or '-'}")
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.1f}"
    return "-" if value is None else str(value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sweeper.bench", description="Measure a running server."
    )
    add = parser.add_argument
    add("url", metavar="URL", help="the server, for instance http://127.0.0.1:30000")
    add("--workload", default="single", help="one of: " + ", ".join(_WORKLOADS))
    add("--concurrency", type=int, metavar="N", help="streams kept open")
    add("--request-rate", type=float, metavar="R", help="requests a second, Poisson, instead")
    add(
        "--arrivals", metavar="FILE", help="a trace of send times in seconds, a line each, instead"
    )
    add("--ramp-s", type=float, metavar="S", help="seconds over which the load grows")
    add("--prompts", metavar="FILE", help="a prompt set's name or a JSONL or ShareGPT file")
    add("--max-tokens", type=int, metavar="N", help="output tokens of each request")
    add("--repeats", type=int, metavar="N", help="how often the prompt set is sent")
    add("--duration-s", type=float, metavar="S", help="how long requests are sent, instead")
    add("--warmup", type=int, metavar="N", help="requests sent before, not counted")
    add("--temperature", type=float, metavar="T", help="0 is greedy")
    add("--stop-at-eos", action="store_true", help="let answers end before --max-tokens")
    add("--route", choices=sorted(PATHS), help="which streaming route is used")
    add("--chat-template", choices=("auto", "always", "never"), help="of the plain routes")
    add("--seed", type=int, metavar="N", help="seed of arrivals and intervals")
    add("--salt", metavar="TEXT", help="prefix of all prompts; random if left out")
    add("--model", metavar="NAME", help="instead of the one that /v1/models names")
    add("--gpus", type=int, default=0, metavar="N", help="the server's GPUs, for tok/s per GPU")
    add("--progress-s", type=float, default=120.0, metavar="S", help="longest wait for a chunk")
    add("--no-flush", action="store_true", help="leave the server's cache as it is")
    add("--api-key-env", default="SWEEPER_API_KEY", metavar="VAR", help="variable with the key")
    add("--json", action="store_true", help="print JSON")
    add("--requests", action="store_true", help="with --json, print every request too")
    return parser


def _workload(options: argparse.Namespace) -> Workload:
    """Return the named workload with the options that were given.

    Raises:
        UserError: No such workload, or values that cannot be meant.
    """
    known = _WORKLOADS.get(options.workload)
    if known is None:
        raise UserError(f"no workload {options.workload!r}; there are {', '.join(_WORKLOADS)}")
    given: dict[str, Any] = {
        name: getattr(options, name) for name in _GIVEN if getattr(options, name) is not None
    }
    for names in (("concurrency", "request_rate", "arrivals"), ("repeats", "duration_s")):
        chosen = {name: getattr(options, name) for name in names}
        count = sum(value is not None for value in chosen.values())
        if count > 1:
            flags = " or ".join(f"--{name}" for name in names).replace("_", "-")
            raise UserError(f"give {flags}, not several")
        if count:
            given |= chosen
    if options.ramp_s is not None:
        given["ramp_s"] = options.ramp_s
    for name in ("concurrency", "request_rate", "repeats", "duration_s", "max_tokens", "ramp_s"):
        if given.get(name) is not None and given[name] <= 0:
            raise UserError(f"--{name.replace('_', '-')} must be more than 0")
    if given.get("warmup", 0) < 0:
        raise UserError("--warmup must not be less than 0")
    if options.stop_at_eos:
        given["ignore_eos"] = False
    return replace(known, **given)


async def _look_at(url: str, api_key: str | None, model: str | None) -> Served:
    """Return what answers at the address.

    Raises:
        UserError: Nothing answers at the address, or it is no model server.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = aiohttp.ClientTimeout(total=_PROBE_S)
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            async with session.get(f"{url}/v1/models") as response:
                status = response.status
                listed = await response.json(content_type=None) if status == 200 else None
            async with session.get(f"{url}/server_info") as response:
                info = await response.json(content_type=None) if response.status == 200 else {}
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise UserError(f"no model server answers at {url}: {str(error) or 'timeout'}") from error
    if status == 401:
        raise UserError(f"{url} wants a key; put it into the variable of --api-key-env")
    entries = listed.get("data") if isinstance(listed, dict) else None
    entries = entries if isinstance(entries, list) else []
    names = [entry.get("id") for entry in entries if isinstance(entry, dict)]
    name = model or next((str(name) for name in names if name), None)
    if name is None:
        raise UserError(f"{url}/v1/models names no model (HTTP {status}); give --model")
    info = info if isinstance(info, dict) else {}
    scale = info.get("time_scale")
    return Served(
        model=name,
        scale=float(scale) if isinstance(scale, int | float) and scale > 0 else 1.0,
        simulated=info.get("simulated") is True,
    )


def _show(progress: Progress) -> None:
    speed = "-" if progress.output_tok_s is None else f"{progress.output_tok_s:.1f}"
    which = "warm-up" if progress.repeat < 0 else f"pass {progress.repeat + 1}/{progress.repeats}"
    total = "" if progress.total is None else f"/{progress.total}"
    sys.stderr.write(f"\r{which}  {progress.done}{total} requests  {speed} tok/s   ")
    sys.stderr.flush()


def _hide(_: Progress) -> None:
    """Show nothing."""


if __name__ == "__main__":
    sys.exit(main())
