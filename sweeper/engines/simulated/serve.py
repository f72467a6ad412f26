"""One server from start to end: load, listen, warm up, serve, and die when it must."""

import asyncio
import os
import random
import signal
from collections.abc import Mapping

from aiohttp import web

from sweeper.clock import Clock
from sweeper.engines.simulated import tracebacks
from sweeper.engines.simulated.control import build_app
from sweeper.engines.simulated.faults import ActiveFaults
from sweeper.engines.simulated.job import Job, PrefixCache
from sweeper.engines.simulated.lifecycle import Tree
from sweeper.engines.simulated.log import Log
from sweeper.engines.simulated.memory import plan_memory
from sweeper.engines.simulated.noise import launch_factor
from sweeper.engines.simulated.resolve import Resolved
from sweeper.engines.simulated.scheduler import Scheduler
from sweeper.engines.simulated.server import Server
from sweeper.engines.simulated.setting import setting_of, tree_is_too_small
from sweeper.engines.simulated.settings import Settings
from sweeper.engines.simulated.startup import SchedulerDied, Startup

#: Most requests a server without speculation runs together (logs).
_MAX_RUNNING = 4096
#: After a compile the first minute is half as fast.
_SLOW_AFTER_JIT_S = 60.0
#: Tokens that a request has before a fault at it strikes.
_TOKENS_BEFORE_FAULT = 20
#: Real seconds between two looks at the children.
_CHILD_POLL_S = 0.1
_DEADLY = ("oom_serving", "crash_kernel", "killed", "nccl_timeout", "watchdog", "hang_serving")


def build_server(
    *,
    settings: Settings,
    resolved: Resolved,
    faults: ActiveFaults,
    clock: Clock,
    log: Log,
    environ: Mapping[str, str],
    identity: str,
    rng: random.Random,
    launch_command: str,
    started_s: float,
) -> Server:
    """Return a server that has not started.

    Args:
        settings: Its own environment.
        resolved: Its flags.
        faults: Its faults.
        clock: Engine time.
        log: Its log.
        environ: Where NCCL's variables are.
        identity: What sets this launch apart from others: the seed of its noise.
        rng: Chance of this launch.
        launch_command: How it was started.
        started_s: Engine time of the start.
    """
    setting = setting_of(resolved, environ)
    memory = plan_memory(settings.calibration, resolved, draft_tp=setting.draft_tp)
    flags = resolved.flags
    asked = flags["max_running_requests"] or _MAX_RUNNING
    scheduler = Scheduler(
        clock=clock,
        log=log,
        cal=settings.calibration,
        setting=setting,
        speed=launch_factor(settings.seed, identity, settings.noise),
        drift=settings.drift,
        max_running=min(asked, _MAX_RUNNING),
        pool_tokens=memory.kv_tokens,
        max_graph_batch=max(resolved.graph_sizes) if resolved.decode_graphs else 0,
        log_interval=flags["decode_log_interval"],
        cache=PrefixCache(enabled=not flags["disable_radix_cache"]),
    )
    return Server(
        settings=settings,
        resolved=resolved,
        setting=setting,
        memory=memory,
        faults=faults,
        clock=clock,
        log=log,
        scheduler=scheduler,
        rng=rng,
        launch_command=launch_command,
        started_s=started_s,
    )


async def serve(server: Server, children: dict[int, str]) -> int:
    """Run a server to its end and return its exit status."""
    tree = Tree(server.clock, server.log, children)
    watching = asyncio.create_task(_watch_children(server, tree))
    runner = web.AppRunner(build_app(server), access_log=None, shutdown_timeout=0.0)
    await runner.setup()
    lies = "health_lies" in server.faults
    if lies and not await _listen(server, tree, runner):
        return 3
    try:
        await Startup(server).run()
    except SchedulerDied as e:
        tree.die_starting(e.death)
    if not lies and not await _listen(server, tree, runner):
        return await _mistake_the_other(server, tree)
    deadly = any(name in server.faults for name in (*_DEADLY, "draft_dies_at_first_request"))
    if deadly or tree_is_too_small(server.resolved, server.setting):
        server.scheduler.fate = lambda job: _fate(server, tree, job)
    if "slow_jit" in server.faults:
        server.scheduler.slow_until_s = server.clock.now_s() + _SLOW_AFTER_JIT_S
    tree.obey_signals(server)
    running = asyncio.create_task(server.scheduler.run())
    server.loaded.set()
    await _warm_up(server)
    server.status = "up"
    server.log.line("The server is fired up and ready to roll!")
    await asyncio.gather(running, watching)
    return 0


async def _listen(server: Server, tree: Tree, runner: web.AppRunner) -> bool:
    """Listen as uvicorn does; tell whether the port could be had."""
    host, port = server.flags["host"], server.flags["port"]
    for line in (
        f"INFO:     Started server process [{os.getpid()}]",
        "INFO:     Waiting for application startup.",
        "INFO:     Application startup complete.",
    ):
        server.log.line(line)
    if "port_conflict" in server.faults:
        tree.port_taken(host, port)
        return False
    try:
        await web.TCPSite(runner, host, port, backlog=2048).start()
    except OSError:
        tree.port_taken(host, port)
        return False
    server.log.line(f"INFO:     Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)")
    return True


async def _mistake_the_other(server: Server, tree: Tree) -> int:
    """Take whoever holds the port for oneself, as SGLang's warm-up does, and end.

    A holder that speaks HTTP gets the ready line and status 3; one that does not is asked 120
    times before the tree kills itself.
    """
    for _ in range(120):
        if "port_conflict" in server.faults or await _speaks_http(server):
            server.log.line("The server is fired up and ready to roll!")
            tree.leave(3)
        await asyncio.sleep(server.clock.real_s(1.0))
    server.log.line("Initialization failed. warmup error: no answer on the server's port")
    tree.kill()


async def _speaks_http(server: Server) -> bool:
    host, port = server.flags["host"], server.flags["port"]
    try:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(f"GET /model_info HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        async with asyncio.timeout(5.0):
            first = await reader.readline()
        writer.close()
    except (OSError, TimeoutError):
        return False
    return first.startswith(b"HTTP/")


async def _warm_up(server: Server) -> None:
    seconds = server.settings.start_s * 0.04
    if server.flags["skip_server_warmup"]:
        return
    server.log.access("127.0.0.1:0", "GET", "/model_info", 200, "OK")
    await asyncio.sleep(server.clock.real_s(seconds))
    job = server.job("The capital city of France is", max_tokens=8, internal=True)
    server.scheduler.submit(job)
    while job.finish is None:
        await job.news.wait()
        job.news.clear()
    server.log.access("127.0.0.1:0", "POST", "/generate", 200, "OK")


async def _watch_children(server: Server, tree: Tree) -> None:
    """Die with a child that dies.

    By looking, because uvloop keeps SIGCHLD for itself.
    """
    while tree.children:
        await asyncio.sleep(_CHILD_POLL_S)
        for pid, name in list(tree.children.items()):
            done, status = os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - does not wait
            if not done:
                continue
            del tree.children[pid]
            code = os.waitstatus_to_exitcode(status)
            if not server.loaded.is_set():
                server.log.line(
                    f"RuntimeError: Rank {name.rpartition('_')[2]} scheduler died during "
                    f"initialization (exit code: {code}). If exit code is -9 (SIGKILL), a common "
                    "cause is the OS OOM killer. Run 'dmesg -T | grep -i oom' to check."
                )
                tree.leave(1)
            if code:  # a child that exits with 0 goes unnoticed
                await tree.child_died(server, name, pid, code)


async def _fate(server: Server, tree: Tree, job: Job) -> None:
    """Let a fault strike at the request that it is for, a draft tree's at the first one."""
    if tree_is_too_small(server.resolved, server.setting):
        server.scheduler.silence()
        shape = server.setting
        await tree.die_serving(server, tracebacks.tree_too_small(shape.steps, shape.draft_tokens))
    if job.internal:
        return
    if "draft_dies_at_first_request" in server.faults:
        await _die(server, tree, "draft_dies_at_first_request")
    for name in _DEADLY:
        if name not in server.faults or job.number < server.faults.argument(name, 1):
            continue
        if job.produced >= min(_TOKENS_BEFORE_FAULT, max(job.limit // 2, 1)):
            await _die(server, tree, name)


async def _die(server: Server, tree: Tree, name: str) -> None:
    server.scheduler.silence()
    if name == "hang_serving":
        await asyncio.Event().wait()
    if name == "watchdog":
        limit_s = float(server.flags["watchdog_timeout"])
        await asyncio.sleep(server.clock.real_s(limit_s * 1.25))
        for rank in range(server.flags["tp_size"]):
            server.log.line(
                f"Scheduler watchdog timeout (self.watchdog_timeout={limit_s:g}, self.soft=False)",
                rank=rank,
            )
            server.log.line(
                f"Pyspy failed to dump PID {os.getpid()}. Error: /bin/dash: 1: py-spy: not found",
                rank=rank,
            )
        await tree.crash(server)
    if name in ("killed", "nccl_timeout"):
        victim = next((p for p, n in tree.children.items() if n == "scheduler_0"), None)
        code = -signal.SIGKILL
        if name == "nccl_timeout":
            server.log.raw(tracebacks.NCCL_TIMEOUT)
            code = -signal.SIGABRT
        if victim is not None:
            os.kill(victim, -code)
            await asyncio.Event().wait()  # the watch finds it
        await tree.child_died(server, "scheduler_0", os.getpid(), int(code))
    deaths = tracebacks.deaths(server.settings.calibration, server.flags["mem_fraction_static"])
    await tree.die_serving(server, deaths[name])
