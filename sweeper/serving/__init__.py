"""Owning server processes: started, waited for, stopped and proven gone."""

from sweeper.serving.control import ControlAnswer
from sweeper.serving.gpus import (
    FakeGpus,
    GpuDevice,
    Gpus,
    Holder,
    NoGpus,
    NvmlGpus,
    detect,
    first_visible,
    index_of,
    unseen,
)
from sweeper.serving.ports import Ports, reserve_ports
from sweeper.serving.process import StopReport
from sweeper.serving.processes import ProcessId, sweep_marked
from sweeper.serving.rank import Rank, start_rank
from sweeper.serving.readiness import api_key
from sweeper.serving.server import Place, Server, start

__all__ = [
    "ControlAnswer",
    "FakeGpus",
    "GpuDevice",
    "Gpus",
    "Holder",
    "NoGpus",
    "NvmlGpus",
    "Place",
    "Ports",
    "ProcessId",
    "Rank",
    "Server",
    "StopReport",
    "api_key",
    "detect",
    "first_visible",
    "index_of",
    "reserve_ports",
    "start",
    "start_rank",
    "sweep_marked",
    "unseen",
]
