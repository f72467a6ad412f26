"""`python -m sweeper.engines.simulated <SGLang's flags>`: a server that only looks like SGLang.

Every launch says SIMULATED in its first line, in `/server_info` and in `/model_info`.
"""

import asyncio
import os
import random
import shlex
import signal
import sys
from collections.abc import Sequence

from sweeper.clock import Clock
from sweeper.engines.simulated import tracebacks
from sweeper.engines.simulated.children import spawn_children, spawn_stray
from sweeper.engines.simulated.faults import ActiveFaults, active_faults
from sweeper.engines.simulated.flags import parse
from sweeper.engines.simulated.log import Log, server_args_line
from sweeper.engines.simulated.resolve import Rejected, Resolved, resolve
from sweeper.engines.simulated.settings import Settings, read_settings
from sweeper.engines.simulated.startup import IMPORT_S

_NOT_THE_SETTING = frozenset({"host", "port", "nccl_port", "api_key", "admin_api_key"})


def main(argv: Sequence[str]) -> int:
    """Run a server until it is ended and return its exit status; most ends do not return."""
    try:
        settings = read_settings(os.environ)
    except ValueError as e:
        sys.stderr.write(f"sweeper.engines.simulated: {e}\n")
        return 64
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    clock = Clock(settings.time_scale)
    started_s = clock.now_s()
    args = parse(argv)
    log = Log(clock, args["tp_size"])
    log.raw(
        f"{log.stamp()} SIMULATED SERVER: no GPU, no model, speeds from the cost model "
        f"{settings.calibration.name!r}; {settings.time_scale:g} simulated seconds a real second\n"
    )
    try:
        resolved = resolve(args, settings.calibration)
    except Rejected as e:
        log.raw(tracebacks.rejection_text(str(e)))
        pid = os.getpid()
        log.line(f"kill_process_tree called: parent_pid={pid}, include_parent=False, pid={pid}")
        return 1
    faults = active_faults(settings.faults, resolved.flags, os.environ)
    if "model_missing" in faults:
        log.raw(tracebacks.missing_model(resolved.flags["model_path"]))
        return 1
    for warning in resolved.warnings:
        log.line(warning)
    log.line(server_args_line(resolved.flags))
    if "stubborn" in faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        spawn_stray()
    import_s = min(clock.real_s(settings.start_s * 0.06), IMPORT_S)
    children = spawn_children(settings.children, import_s)
    return _serve(argv, settings, resolved, faults, clock, log, children, started_s)


def _serve(
    argv: Sequence[str],
    settings: Settings,
    resolved: Resolved,
    faults: ActiveFaults,
    clock: Clock,
    log: Log,
    children: dict[int, str],
    started_s: float,
) -> int:
    # Imported after the fork, so that the children stay small.
    import uvloop

    from sweeper.engines.simulated.serve import build_server, serve

    command = shlex.join(["python", "-m", "sglang.launch_server", *argv])
    identity = _identity(settings, resolved)
    server = build_server(
        settings=settings,
        resolved=resolved,
        faults=faults,
        clock=clock,
        log=log,
        environ=os.environ,
        identity=identity,
        rng=random.Random(f"server {settings.seed} {identity}"),
        launch_command=command,
        started_s=started_s,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(server, children))


def _identity(settings: Settings, resolved: Resolved) -> str:
    """Return what sets this launch's noise apart: trial and setting, not ports or keys."""
    flags = [item for item in sorted(resolved.flags.items()) if item[0] not in _NOT_THE_SETTING]
    environment = sorted(
        (k, v) for k, v in os.environ.items() if k.startswith(("NCCL_", "SWEEPER_DRAFT_"))
    )
    return f"{settings.trial} {flags} {environment}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
