"""Who holds GPU memory, by small files or by the driver."""

import os
import subprocess
from pathlib import Path

import pynvml
import pytest

from sweeper.errors import UserError
from sweeper.serving.gpus import (
    FakeGpus,
    NoGpus,
    NvmlGpus,
    detect,
    first_visible,
    index_of,
    unseen,
)
from sweeper.serving.memory import held_by, wait_for_level
from sweeper.serving.processes import ProcessId
from tests.serving.odd_server import hold_memory


def test_a_file_counts_while_its_process_lives_and_for_the_lag_after(tmp_path: Path) -> None:
    now = [100.0]
    gpus = FakeGpus(2, tmp_path, lag_s=5.0, now_s=lambda: now[0])
    with subprocess.Popen(["sleep", "600"]) as holder:
        hold_memory(tmp_path, 1, 700, holder.pid)
        hold_memory(tmp_path, 1, 30, os.getpid())
        assert gpus.memory_used_mib((0, 1)) == {0: 0, 1: 730}
        assert {one.pid for one in gpus.holders((1,))} == {holder.pid, os.getpid()}
        assert gpus.holders((0,)) == ()
        holder.kill()
    assert gpus.memory_used_mib((1,)) == {1: 730}
    now[0] += 4.9
    assert gpus.memory_used_mib((1,)) == {1: 730}
    now[0] += 0.1
    assert gpus.memory_used_mib((1,)) == {1: 30}


@pytest.mark.parametrize("name", ["0-x-1", "0-1", "notes-about-files", "0-1-1-1"])
def test_files_that_are_no_holders_are_passed_over(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("700")
    assert FakeGpus(1, tmp_path).memory_used_mib((0,)) == {0: 0}


def test_a_pid_that_came_round_again_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / f"0-{os.getpid()}-1").write_text("700")
    assert FakeGpus(1, tmp_path).holders((0,)) == ()


def test_a_folder_that_is_not_there_is_free_memory(tmp_path: Path) -> None:
    gpus = FakeGpus(3, tmp_path / "none")
    assert [device.index for device in gpus.devices()] == [0, 1, 2]
    assert {device.name for device in gpus.devices()} == {"simulated"}
    assert gpus.memory_used_mib((0, 1)) == {0: 0, 1: 0}


class GpusWithHiddenHolders(FakeGpus):
    """A container's view: the memory is in use and the driver shows no process."""

    def memory_used_mib(self, ids: object) -> dict[int, int]:
        return {0: 9000}


def test_who_holds_memory_is_named_known_to_be_nobody_or_not_known(tmp_path: Path) -> None:
    gpus, free, full = FakeGpus(1, tmp_path), {0: 10}, {0: 9000}
    assert held_by(gpus, (0,), free) == ()
    assert held_by(gpus, (0,), full) is None  # whoever held it before the start is gone
    assert held_by(gpus, (0,), {}) is None
    assert held_by(gpus, (), free) is None
    assert held_by(NoGpus(), (0,), {0: 0}) is None
    assert held_by(GpusFallenOffTheBus(1, tmp_path), (0,), free) is None
    hold_memory(tmp_path, 0, 500, os.getpid())  # a monitor's context explains no failure
    assert held_by(gpus, (0,), free) == ()
    hold_memory(tmp_path, 0, 5000, os.getpid())
    (line,) = held_by(gpus, (0,), free) or ()
    assert f"pid {os.getpid()}" in line
    (line,) = held_by(GpusWithHiddenHolders(1, tmp_path / "none"), (0,), free) or ()
    assert "the driver shows no process" in line


class GpusFallenOffTheBus(FakeGpus):
    """The driver no longer answers."""

    def memory_used_mib(self, ids: object) -> dict[int, int]:
        raise OSError("GPU is lost")


def test_visible_gpus_are_named_by_number_or_by_uuid(tmp_path: Path) -> None:
    gpus = FakeGpus(4, tmp_path)
    assert first_visible(gpus, 2, None) == (0, 1)
    assert first_visible(gpus, 2, "3,1,0") == (3, 1)
    assert first_visible(gpus, 2, "simulated-2, 0") == (2, 0)
    assert first_visible(NoGpus(), 0, None) == ()
    assert index_of(gpus, "simulated-3") == 3
    for visible in ("1", "", "MIG-7,1"):
        with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES"):
            first_visible(gpus, 2, visible)


def test_memory_in_use_is_told_when_nobody_is_shown(tmp_path: Path) -> None:
    (line,) = wait_for_level(GpusWithHiddenHolders(1, tmp_path), {0: 100}, real_s=0.0)
    assert "9000 MiB in use" in line
    assert "no process" in line


def test_memory_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (line,) = wait_for_level(GpusFallenOffTheBus(1, tmp_path), {0: 100}, real_s=0.0)
    assert "GPU is lost" in line


def test_a_process_is_its_pid_and_its_start() -> None:
    own = ProcessId.of(os.getpid())
    assert own.alive()
    assert not ProcessId(own.pid, own.starttime + 1).alive()
    with subprocess.Popen(["sleep", "600"]) as child:
        one = ProcessId.of(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not one.alive()  # a zombie now
    with pytest.raises(ProcessLookupError):
        ProcessId.of(child.pid)


def test_a_node_without_gpus_is_found_to_have_none() -> None:
    gpus = detect()
    if isinstance(gpus, NvmlGpus):
        assert gpus.devices()
    else:
        assert isinstance(gpus, NoGpus)
        assert gpus.devices() == ()
        assert gpus.driver_version() is None


def test_a_gpu_that_has_fallen_off_the_bus_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def lost() -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lost)
    assert isinstance(detect(), NoGpus)
    (tmp_path / "nvidia0").touch()
    assert "lost" in (unseen(tmp_path) or "")


def test_gpus_that_do_not_answer_are_told_from_none(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert unseen(tmp_path) is None
    (tmp_path / "nvidia0").touch()
    assert (unseen(tmp_path) is None) == isinstance(detect(), NvmlGpus)


@pytest.mark.gpu
def test_the_driver_tells_who_holds_memory() -> None:
    torch = pytest.importorskip("torch")
    gpus = NvmlGpus()
    device = gpus.devices()[0]
    before = gpus.memory_used_mib((0,))[0]
    block = torch.empty(1 << 30, dtype=torch.uint8, device="cuda:0")
    assert block.is_cuda
    assert gpus.memory_used_mib((0,))[0] >= before + 1024
    assert device.memory_total_mib > 1024
    assert gpus.driver_version()
