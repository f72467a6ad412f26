"""What a node's GPUs are, and who holds their memory.

NVML where there are GPUs; a folder of small files where a machine without them plays one that
has some; neither, elsewhere. GPUs are numbered in the order of the PCI bus, as NVML does.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Protocol

from sweeper.errors import UserError
from sweeper.serving.processes import ProcessId, name_of

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDevice:
    """One GPU of a node."""

    index: int
    name: str
    memory_total_mib: int
    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that holds memory of a GPU.

    Attributes:
        pid: As the driver tells it; in a container it may be the host's.
        name: Short name of the process; None if it cannot be seen.
        memory_mib: What it holds; None where the driver does not say.
        gpu: Index of the GPU.
    """

    pid: int
    name: str | None
    memory_mib: int | None
    gpu: int

    def __str__(self) -> str:
        size = "memory" if self.memory_mib is None else f"{self.memory_mib} MiB"
        return f"GPU {self.gpu}: {size} held by {self.name or 'a process'} (pid {self.pid})"


class Gpus(Protocol):
    """The GPUs of this node; asking must not use GPU memory."""

    def devices(self) -> tuple[GpuDevice, ...]:
        """Return all GPUs, by index."""

    def memory_used_mib(self, ids: Iterable[int]) -> dict[int, int]:
        """Return the memory in use on each of these GPUs, whoever uses it."""

    def holders(self, ids: Iterable[int]) -> tuple[Holder, ...]:
        """Return the processes that hold memory on these GPUs, as far as they are shown."""

    def driver_version(self) -> str | None:
        """Return the driver's version; None without one."""


@dataclass(frozen=True, slots=True)
class NoGpus:
    """A node without GPUs."""

    def devices(self) -> tuple[GpuDevice, ...]:
        """Return none."""
        return ()

    def memory_used_mib(self, ids: Iterable[int]) -> dict[int, int]:
        """Return nothing; there is no GPU to ask for."""
        return dict.fromkeys(ids, 0)

    def holders(self, ids: Iterable[int]) -> tuple[Holder, ...]:  # noqa: ARG002
        """Return none."""
        return ()

    def driver_version(self) -> str | None:
        """Return None."""
        return None


class NvmlGpus:
    """The GPUs that NVIDIA's driver shows.

    Raises:
        OSError: Here and in each method: there is no driver, no binding of it, or it does not
            answer (a GPU has fallen off the bus).
    """

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise OSError("the NVML binding (nvidia-ml-py) is not installed") from error
        self._nvml: ModuleType = pynvml
        with self._asking() as nvml:
            nvml.nvmlInit()

    @contextlib.contextmanager
    def _asking(self) -> Iterator[ModuleType]:
        try:
            yield self._nvml
        except self._nvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error

    def devices(self) -> tuple[GpuDevice, ...]:
        """Return all GPUs, by index."""
        found = []
        with self._asking() as nvml:
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                found.append(
                    GpuDevice(
                        index=index,
                        name=_text(nvml.nvmlDeviceGetName(handle)),
                        memory_total_mib=nvml.nvmlDeviceGetMemoryInfo(handle).total // _MIB,
                        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
                    )
                )
        return tuple(found)

    def memory_used_mib(self, ids: Iterable[int]) -> dict[int, int]:
        """Return the memory in use on each of these GPUs."""
        used = {}
        with self._asking() as nvml:
            for index in ids:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                used[index] = int(nvml.nvmlDeviceGetMemoryInfo(handle).used) // _MIB
        return used

    def holders(self, ids: Iterable[int]) -> tuple[Holder, ...]:
        """Return the compute and graphics processes on these GPUs."""
        found: dict[tuple[int, int], Holder] = {}
        with self._asking() as nvml:
            for index in ids:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                processes = list(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
                # Data centre cards may refuse this; compute is what matters.
                with contextlib.suppress(nvml.NVMLError):
                    processes += nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
                for process in processes:
                    size = process.usedGpuMemory
                    found[index, process.pid] = Holder(
                        pid=process.pid,
                        name=name_of(process.pid),
                        memory_mib=None if size is None else size // _MIB,
                        gpu=index,
                    )
        return tuple(found.values())

    def driver_version(self) -> str | None:
        """Return the driver's version."""
        with self._asking() as nvml:
            return _text(nvml.nvmlSystemGetDriverVersion())


@dataclass(frozen=True, slots=True)
class FakeGpus:
    """GPUs played by a folder: a process holds memory while its file stands there.

    The file is named `GPU-PID-STARTTIME` and holds a number of MiB. It counts while the process
    lives, and for `lag_s` after it was first seen dead, as a driver takes its time.

    Attributes:
        count: How many GPUs there are.
        directory: The folder; it need not exist.
        memory_total_mib: Memory of each.
        lag_s: Real seconds from death to free memory.
        now_s: A clock in seconds.
    """

    count: int
    directory: Path
    memory_total_mib: int = 143_771
    lag_s: float = 0.0
    now_s: Callable[[], float] = time.monotonic
    _seen_dead_s: dict[str, float] = field(default_factory=dict, repr=False, compare=False)

    def devices(self) -> tuple[GpuDevice, ...]:
        """Return all GPUs, by index; their name is "simulated"."""
        return tuple(
            GpuDevice(
                index=index,
                name="simulated",
                memory_total_mib=self.memory_total_mib,
                uuid=f"simulated-{index}",
            )
            for index in range(self.count)
        )

    def memory_used_mib(self, ids: Iterable[int]) -> dict[int, int]:
        """Return the sum of the files of each GPU."""
        used = dict.fromkeys(ids, 0)
        for holder in self.holders(used):
            used[holder.gpu] += holder.memory_mib or 0
        return used

    def holders(self, ids: Iterable[int]) -> tuple[Holder, ...]:
        """Return the processes whose files count."""
        wanted = set(ids)
        found = []
        for path in sorted(self.directory.glob("*-*-*")):
            try:
                gpu, pid, starttime = (int(part) for part in path.name.split("-"))
                size = int(path.read_text())
            except (ValueError, OSError):
                continue  # half written, or just removed
            if gpu in wanted and self._counts(path.name, ProcessId(pid, starttime)):
                found.append(Holder(pid=pid, name=name_of(pid), memory_mib=size, gpu=gpu))
        return tuple(found)

    def driver_version(self) -> str | None:
        """Return None; there is no driver."""
        return None

    def _counts(self, name: str, process: ProcessId) -> bool:
        if process.alive():
            return True
        now = self.now_s()
        return now - self._seen_dead_s.setdefault(name, now) < self.lag_s


def detect() -> Gpus:
    """Return the node's GPUs by NVML, or a node without GPUs."""
    try:
        gpus = NvmlGpus()
        return gpus if gpus.devices() else NoGpus()
    except OSError:
        return NoGpus()


def index_of(gpus: Gpus, name: str) -> int:
    """Return the index of the GPU that one word of CUDA_VISIBLE_DEVICES names.

    Raises:
        OSError: This machine has none of that name; a part of a GPU (MIG) is none.
    """
    if name.isdigit():
        return int(name)
    found = [d.index for d in gpus.devices() if name and d.uuid.startswith(name)]
    if not found:
        raise OSError(f"CUDA_VISIBLE_DEVICES names {name!r}, which is no whole GPU here")
    return found[0]


def first_visible(gpus: Gpus, count: int, visible: str | None) -> tuple[int, ...]:
    """Return the first GPUs that a process of this machine may use.

    Args:
        gpus: All that there are.
        count: How many are wanted.
        visible: CUDA_VISIBLE_DEVICES; None where it is not set.

    Raises:
        UserError: There are fewer.
    """
    try:
        if visible is None:
            free = [device.index for device in gpus.devices()]
        else:
            free = [index_of(gpus, word.strip()) for word in visible.split(",") if word.strip()]
    except OSError as error:
        raise UserError(str(error)) from error
    if len(free) < count:
        limit = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
        raise UserError(f"one server needs {count} GPUs, and there are {len(free)} here{limit}")
    return tuple(free[:count])


def unseen(devices: Path = Path("/dev")) -> str | None:
    """Return why the GPUs that this machine has cannot be seen; None if it has none or they can.

    Args:
        devices: Where NVIDIA's kernel module shows a device for each GPU.
    """
    if not any(devices.glob("nvidia[0-9]*")):
        return None
    try:
        NvmlGpus().devices()
    except OSError as error:
        return str(error)
    return None


def _text(value: str | bytes) -> str:
    # Old versions of the binding return bytes.
    return value.decode() if isinstance(value, bytes) else value
