"""Waiting for GPU memory to come back: the driver frees it after the process is gone."""

import time
from collections.abc import Callable, Mapping

from sweeper.serving.gpus import Gpus

#: What a GPU's level may differ by without anyone holding on: contexts of monitoring tools.
_SLACK_MIB = 256
#: A server is not started on GPUs of which more than this share is in use: no sensible
#: --mem-fraction-static fits, and the failure would be blamed on the setting.
_MOST_USED = 0.5
#: Less than this is a monitor's context, and explains no failure.
_HELD_MIB = 1024
_PAUSE_S = 0.05


def wait_for_room(
    gpus: Gpus, ids: tuple[int, ...], *, real_s: float, stopped: Callable[[], bool]
) -> tuple[str, ...]:
    """Wait until each GPU is at most half in use.

    Returns:
        Who holds the memory, a line for each; empty when there is room.
    """
    if not ids:
        return ()
    try:
        totals = {device.index: device.memory_total_mib for device in gpus.devices()}
    except OSError as error:
        return (f"GPU memory cannot be read: {error}",)
    most = {index: int(totals[index] * _MOST_USED) for index in ids if index in totals}
    return _wait(gpus, tuple(most), most, real_s=real_s, stopped=stopped)


def wait_for_level(gpus: Gpus, before_mib: Mapping[int, int], *, real_s: float) -> tuple[str, ...]:
    """Wait until each GPU has come back to the level it had before a server was started.

    Returns:
        Who holds the memory, a line for each; empty when it is back.
    """
    most = {index: used + _SLACK_MIB for index, used in before_mib.items()}
    return _wait(gpus, tuple(before_mib), most, real_s=real_s, stopped=lambda: False)


def held_by(
    gpus: Gpus, ids: tuple[int, ...], before_mib: Mapping[int, int]
) -> tuple[str, ...] | None:
    """Return who holds memory on these GPUs now, when the server that failed is gone.

    Args:
        gpus: The GPUs of the node.
        ids: The server's.
        before_mib: The memory that was in use before the server was started.

    Returns:
        A line for each holder; empty if nobody holds any and nobody did before the start; None
        if that cannot be known.
    """
    try:
        known = {device.index for device in gpus.devices()}
        if not ids or not known.issuperset(ids):
            return None
        used = gpus.memory_used_mib(ids)
        held = {index: _HELD_MIB for index in ids if used[index] > _HELD_MIB}
        if held:
            return _who(gpus, used, held)
    except OSError:
        return None
    was_free = all(before_mib.get(index, _HELD_MIB + 1) <= _HELD_MIB for index in ids)
    return () if was_free else None


def levels_mib(gpus: Gpus, ids: tuple[int, ...]) -> dict[int, int]:
    """Return the memory in use; nothing where it cannot be read."""
    try:
        return gpus.memory_used_mib(ids)
    except OSError:
        return {}


def _wait(
    gpus: Gpus,
    ids: tuple[int, ...],
    most_mib: Mapping[int, int],
    *,
    real_s: float,
    stopped: Callable[[], bool],
) -> tuple[str, ...]:
    end = time.monotonic() + real_s
    while True:
        try:
            used = gpus.memory_used_mib(ids)
            above = tuple(index for index, most in most_mib.items() if used[index] > most)
            if not above:
                return ()
            if time.monotonic() >= end or stopped():
                return _who(gpus, used, {index: most_mib[index] for index in above})
        except OSError as error:
            if time.monotonic() >= end or stopped():
                return (f"GPU memory cannot be read: {error}",)
        time.sleep(_PAUSE_S)


def _who(gpus: Gpus, used: Mapping[int, int], most_mib: Mapping[int, int]) -> tuple[str, ...]:
    holders = gpus.holders(most_mib)
    named = {holder.gpu for holder in holders}
    return tuple(str(holder) for holder in holders) + tuple(
        f"GPU {index}: {used[index]} MiB in use, expected at most {most}; "
        "the driver shows no process"
        for index, most in most_mib.items()
        if index not in named
    )
