"""Ray itself: started on this machine, or joined."""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from sweeper.errors import UserError

NAMESPACE = "sweeper"
#: Rows move through the object store, arrays never do; Ray's minimum is 75 MiB.
_OBJECT_STORE_BYTES = 100 * 2**20


def join(address: str | None, fake_gpus: int | None) -> str | None:
    """Start or join Ray; return the dashboard's address, None if it has none.

    Args:
        address: A cluster to join; None starts Ray on this machine, on loopback only.
        fake_gpus: GPUs that a Ray of this machine's own shall believe in; None for those it finds.

    Raises:
        UserError: It cannot be started or joined.
    """
    common: dict[str, Any] = {
        "namespace": NAMESPACE,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    try:
        with _own_sigterm():
            if address is not None:
                context = ray.init(address=address, **common)
            else:
                with _all_visible(fake_gpus):
                    context = ray.init(
                        address="local",
                        include_dashboard=True,
                        dashboard_host="127.0.0.1",
                        num_gpus=fake_gpus,
                        object_store_memory=_OBJECT_STORE_BYTES,
                        **common,
                    )
    except (RayError, OSError, ValueError, RuntimeError, ConnectionError) as error:
        where = address or "on this machine"
        raise UserError(f"cannot start or join Ray {where}: {line_of(error)}") from error
    url: str | None = context.dashboard_url
    return f"http://{url}" if url else None


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep the driver's handler of SIGTERM: Ray puts its own there, at each start."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(handler) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def _all_visible(fake_gpus: int | None) -> Iterator[None]:
    """Hide from Ray that a shell shows few GPUs: it would refuse to believe in more."""
    shown = os.environ.pop("CUDA_VISIBLE_DEVICES", None) if fake_gpus is not None else None
    try:
        yield
    finally:
        if shown is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = shown


def line_of(error: BaseException) -> str:
    """Return the line of an error that tells the cause; Ray puts it below frames and names."""
    if isinstance(error, RayTaskError):
        return f"{type(error.cause).__name__}: {line_of(error.cause)}"
    lines = [line for line in str(error).splitlines() if line.strip()]
    if isinstance(error, RayActorError):
        if error.actor_init_failed:
            return lines[-1].strip()
        # First a sentence that is the same for all, and indented what the actor is called.
        lines = [line for line in lines[1:] if not line.startswith("\t")] or lines
    # After what was seen come guesses of what may cause it, a page of them.
    return lines[0].strip().partition(" Some common causes")[0] if lines else type(error).__name__
