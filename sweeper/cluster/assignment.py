"""What a slot is given to run, and what it says while it runs it."""

import hashlib
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from sweeper.errors import Stage, SweeperError
from sweeper.judging.pruning import Rival
from sweeper.records import FlagValue, Launch, Limits, Trial, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One trial and what a slot needs to run it.

    Attributes:
        trial: The trial.
        workloads: What is sent, in order.
        limits: How long to wait.
        folder: The run's folder on the node.
        log: The server's log, below `folder`.
        time_scale: Engine seconds in a real second.
        env: Variables for the server that belong to no setting (the simulation's own).
        cache: Folder for compiled kernels, kept over all trials; below `folder`.
        place_flags: Flags of where it runs, which belong to no setting: ranks, addresses.
        rival: The best setting so far, if being certainly slower than it ends the measurement.
        alone: Whether nothing else may start or be measured on the node while it is measured.
    """

    trial: Trial
    workloads: tuple[Workload, ...]
    limits: Limits
    folder: str
    log: str
    time_scale: float = 1.0
    env: tuple[tuple[str, str], ...] = ()
    cache: str = "cache"
    place_flags: tuple[tuple[str, FlagValue], ...] = ()
    rival: Rival | None = None
    alone: bool = False

    def mark(self, slot: str) -> str:
        """Return what the server's processes carry in their environment."""
        return f"{run_mark(self.trial.study, self.folder)}{slot}/{self.trial.number}"


def run_mark(study: str, folder: str) -> str:
    """Return how the marks of all servers of one run begin.

    Two runs of one study in different folders are two owners, so the folder is part of it.
    """
    return f"sweeper/{study}/{hashlib.sha256(str(Path(folder)).encode()).hexdigest()[:8]}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a slot is doing now.

    Attributes:
        number: The trial's number; None while idle.
        stage: The server's stage.
        detail: For people: "single 1/3: prompt 2 of 5".
        output_tok_s: Speed so far of the workload being measured.
        accept_length: Tokens a verify step so far; None without speculation.
    """

    number: int | None = None
    stage: Stage | None = None
    detail: str = ""
    output_tok_s: float | None = None
    accept_length: float | None = None


class Cancelled(SweeperError):
    """The driver asked for the trial to be given up; it leaves no record."""


def runnable(assignment: Assignment) -> Launch:
    """Return the launch with this node's interpreter, and what belongs to no setting."""
    launch = assignment.trial.launch
    command = launch.command
    if command[0] == "python":
        command = (sys.executable, *command[1:])
    env = {**dict(assignment.env), **launch.env, "SWEEPER_TRIAL": str(assignment.trial.number)}
    flags = {**launch.flags, **dict(assignment.place_flags)}
    return replace(launch, command=command, env=env, flags=flags)


def host_name() -> str:
    """Return this machine's name."""
    return socket.gethostname()
