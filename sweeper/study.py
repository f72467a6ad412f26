"""A study as the space file describes it, and the launches that its points mean.

engine flags + point's flags  --engine.canonical-->  Launch, equal for equal settings
engine flags - baseline.drop  --engine.canonical-->  the baseline's Launch
"""

import fnmatch
import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, get_args

from sweeper.engines.base import Engine
from sweeper.engines.sglang import SGLang
from sweeper.objective import Objective, Slo
from sweeper.records import FlagValue, Launch, Limits, Point, Workload
from sweeper.space import Space

SamplerName = Literal["auto", "tpe", "gp", "nsga2", "random", "grid", "qmc"]
SAMPLERS: tuple[str, ...] = get_args(SamplerName)
ENGINES: dict[str, Engine] = {"sglang": SGLang()}
#: "python" as the first word is the interpreter that the node's worker runs on.
SGLANG_COMMAND = ("python", "-m", "sglang.launch_server")
SIMULATED_COMMAND = ("python", "-m", "sweeper.engines.simulated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """How the embedded server behaves where it stands in for the engine.

    Attributes:
        calibration: Name of its table of constants.
        time_scale: Simulated seconds in a real second.
        start_s: Simulated seconds of a start.
        noise: Multiplier of its run-to-run noise; 0 for none.
        drift: Relative drift of the node over the sweep.
        seed: Seed of its noise.
        fault: Faults that it shows, as its documentation names them.
    """

    calibration: str = "kimi-k2.5-later"
    time_scale: float = 10.0
    start_s: float = 8.0
    noise: float = 1.0
    drift: float = 0.0
    seed: int = 0
    fault: str = ""

    def environment(self) -> dict[str, str]:
        """Return the variables that tell the server so."""
        env = {
            "SWEEPER_SIM_CALIBRATION": self.calibration,
            "SWEEPER_SIM_TIME_SCALE": f"{self.time_scale:g}",
            "SWEEPER_SIM_START_S": f"{self.start_s:g}",
            "SWEEPER_SIM_NOISE": f"{self.noise:g}",
            "SWEEPER_SIM_DRIFT": f"{self.drift:g}",
            "SWEEPER_SIM_SEED": str(self.seed),
        }
        if self.fault:
            env["SWEEPER_SIM_FAULT"] = self.fault
        return env


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """What is launched, before a point changes it.

    Attributes:
        kind: "auto", "sglang" or "simulated"; never "auto" once resolved.
        command: The program to which flags are appended; None for the engine's own.
        model: Path or name of the target model.
        gpus: GPUs of one server, over all of its nodes.
        nodes: Nodes of one server, with the same number of GPUs on each.
        slots_per_node: Servers that share a node at most.
        measure_alone: Whether servers that share a node are measured one after another.
        flags: Flags of every launch.
        env: Variables of every launch.
        simulation: Used where the embedded server stands in.
        preflight: Whether the installed engine is asked what it refuses before the first launch.
    """

    kind: str
    command: tuple[str, ...] | None
    model: str
    gpus: int
    nodes: int = 1
    slots_per_node: int = 1
    measure_alone: bool = True
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    simulation: Simulation = field(default_factory=Simulation)
    preflight: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineSpec:
    """The setting that everything is compared with.

    Attributes:
        drop: Patterns of flags that it does not have.
        flags: Flags that it has instead.
        env: Variables that it has instead.
        reference_tok_s: A figure from elsewhere, drawn as a line; never compared with.
        every: Launches after which it is measured again; None for once at the start.
    """

    drop: tuple[str, ...] = ("speculative-*",)
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    reference_tok_s: float | None = None
    every: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a sweep may spend.

    Attributes:
        launches: Server starts, the baseline's among them.
        hours: Hours of engine time of one slot; None for no limit.
        confirm: Launches of these that are kept back to launch the best settings and the
            baseline afresh.
        prune_confidence: How sure, one-sided, it must be that a setting is slower than the best
            one before its remaining passes are skipped; None never skips.
    """

    launches: int = 40
    hours: float | None = None
    confirm: int = 0
    prune_confidence: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """All that a space file says.

    Attributes:
        name: The study's name; its folder under the runs folder.
        source: The file's path, as the person named it.
        text: The file's text without secret values, kept beside the results.
        engine: What is launched.
        baseline: What it is compared with.
        space: What may be tried.
        workloads: What is sent to each server.
        objectives: The first decides the winner.
        slos: Limits that a winner keeps.
        budget: What may be spent.
        known: Canonical points that are tried first.
        sampler: Name of the sampler.
        seed: Seed of all choices.
        limits: How long to wait.
    """

    name: str
    source: str
    text: str
    engine: EngineSpec
    baseline: BaselineSpec
    space: Space
    workloads: tuple[Workload, ...]
    objectives: tuple[Objective, ...]
    slos: tuple[Slo, ...] = ()
    budget: Budget = field(default_factory=Budget)
    known: tuple[Point, ...] = ()
    sampler: str = "auto"
    seed: int = 0
    limits: Limits = field(default_factory=Limits)
    _baseline: Launch | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def sent(self) -> tuple[Workload, ...]:
        """The workloads in the order in which they are sent.

        Where the first objective may end a launch early, its workload comes first: what follows
        need not be sent then.
        """
        if self.budget.prune_confidence is None:
            return self.workloads
        first = self.objectives[0].workload
        return tuple(sorted(self.workloads, key=lambda w: first is not None and w.name != first))

    @property
    def first_metrics(self) -> frozenset[str]:
        """Metrics of the objectives that are read from the first one's workload."""
        where = [o.workload or self.workloads[0].name for o in self.objectives]
        return frozenset(
            o.metric for o, name in zip(self.objectives, where, strict=True) if name == where[0]
        )

    @property
    def simulated(self) -> bool:
        """Whether the embedded server stands in for the engine."""
        return self.engine.kind == "simulated"

    @property
    def adapter(self) -> Engine:
        """The engine adapter; the same for the real and the simulated server."""
        return ENGINES["sglang"]

    @property
    def context(self) -> str:
        """Hash of what must be equal, beside the launch, for two rows to be comparable."""
        simulation = _changes(self.engine.simulation) if self.simulated else None
        identity = [[_identity(workload) for workload in self.workloads], simulation]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]

    def resolved(self, *, gpus_present: bool) -> "Study":
        """Return the study with kind "auto" decided by whether there are GPUs."""
        if self.engine.kind != "auto":
            return self
        kind = "sglang" if gpus_present else "simulated"
        return replace(self, engine=replace(self.engine, kind=kind))

    def launch(self, point: Point) -> Launch:
        """Return the canonical launch of a canonical point."""
        flags, env = self.space.settings(point)
        return self._canonical({**self.engine.flags, **flags}, {**self.engine.env, **env})

    def baseline_launch(self) -> Launch:
        """Return the canonical launch of the baseline."""
        if self._baseline is None:
            # Asked for several times before each launch, so it is made once.
            object.__setattr__(self, "_baseline", self._make_baseline())
        assert self._baseline is not None
        return self._baseline

    def refuse(self, launch: Launch) -> str | None:
        """Return why a canonical launch cannot work on the nodes that it gets, or None."""
        nodes = self.engine.nodes
        if nodes > 1:
            # The flags of a place are not the setting's, but what is refused depends on them.
            flags = {**launch.flags, "nnodes": nodes}
            launch = replace(launch, flags=flags, gpus=launch.gpus // nodes)
        return self.adapter.refuse(launch)

    def _make_baseline(self) -> Launch:
        kept = {
            name: value
            for name, value in self.engine.flags.items()
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.baseline.drop)
        }
        return self._canonical(
            {**kept, **self.baseline.flags}, {**self.engine.env, **self.baseline.env}
        )

    def _canonical(self, flags: Mapping[str, FlagValue], env: Mapping[str, str]) -> Launch:
        own = self.engine.command
        return self.adapter.canonical(
            Launch(
                engine=self.adapter.name,
                command=SIMULATED_COMMAND if self.simulated else own or SGLANG_COMMAND,
                model=self.engine.model,
                gpus=self.engine.gpus,
                flags=flags,
                env=env,
                simulated=self.simulated,
            )
        )


def _identity(workload: Workload) -> dict[str, object]:
    """Return the workload with what its files hold in place of where they lie.

    The same study goes on in another folder or on another machine, and a changed file is another
    workload.
    """
    given = _changes(workload)
    for name in ("prompts", "arrivals"):
        path = Path(str(given.get(name) or ""))
        if path.is_absolute() and path.is_file():
            given[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return given


def _changes(record: Workload | Simulation) -> dict[str, object]:
    """Return the fields that differ from their defaults, so that a field added later to the
    record does not make strangers of the stored rows."""
    return {
        f.name: getattr(record, f.name)
        for f in fields(record)
        if f.default is MISSING or getattr(record, f.name) != f.default
    }
