"""What a sweep tells Ray's dashboard and Prometheus: one record, and what draws it as metrics.

    SweepNumbers --Publisher--> Ray's Gauges and Counters --Ray's node agent--> /metrics, ray_NAME

A gauge that was set once keeps its value until the driver ends, and a NaN makes Ray's exporter drop
the whole batch (2.60). So the figures of a slot are to be read together with
`sweeper_slot_measuring`, which is 1 only while they are those of the trial that runs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeper.cluster.assignment import Status

#: Where a sweep stands; exactly one is 1.
STATES = ("searching", "confirming", "stopping", "ended")
_STUDY = ("study", "engine")
_BY_KIND = (*_STUDY, "hardware")
#: Name -> (description, labels); Ray puts `ray_` before each name.
GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "sweeper_state": ("1 for the state that the sweep is in.", (*_STUDY, "state")),
    "sweeper_running_trials": ("Trials in flight.", _STUDY),
    "sweeper_launches_left": ("Launches that the budget still allows.", _STUDY),
    "sweeper_settings_left": ("Settings that were not launched yet.", _STUDY),
    "sweeper_best_output_tok_s": ("Speed of the best setting, tokens a second.", _BY_KIND),
    "sweeper_baseline_output_tok_s": ("Speed of the baseline, tokens a second.", _BY_KIND),
    "sweeper_gpu_hours_used": ("GPU-hours of engine time of finished trials.", _STUDY),
    "sweeper_gpu_hours_left": ("GPU-hours that the budget still allows.", _STUDY),
    "sweeper_busy_share": ("Share of the slots' time in which they had a trial.", _STUDY),
    "sweeper_slots_lost": ("Slots out of service.", _STUDY),
    "sweeper_slot_busy": ("1 while the slot runs a trial.", (*_STUDY, "slot")),
    "sweeper_slot_measuring": ("1 while the slot's figures are of now.", (*_STUDY, "slot")),
    "sweeper_slot_trial": ("Number of the trial on the slot.", (*_STUDY, "slot")),
    "sweeper_slot_output_tok_s": ("Speed of the trial, tokens a second.", (*_STUDY, "slot")),
    "sweeper_slot_accept_length": ("Tokens a verify step of the trial.", (*_STUDY, "slot")),
}
#: The same for counters; Prometheus sees them with `_total` at the end.
COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "sweeper_launches": ("Launches that ended, by outcome.", (*_STUDY, "outcome")),
    "sweeper_phase_seconds": ("Engine seconds of finished trials.", (*_STUDY, "phase")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepNumbers:
    """How a sweep stands, in numbers.

    Attributes:
        study: The study's name.
        engine: "sglang", or "simulated" where all figures are made up.
        state: One of `STATES`.
        launches: How launches ended ("complete", "failed", ...) -> how many.
        running: Trials in flight.
        launches_left: What the budget still allows.
        settings_left: Settings that were not launched; None where they cannot be counted.
        best_tok_s: Kind of hardware -> output speed of the best setting, once there is one.
        baseline_tok_s: Kind of hardware -> output speed of the baseline, once it was measured.
        phases_s: Phase -> engine seconds of all finished trials.
        gpu_hours: Engine GPU-hours of all finished trials.
        gpu_hours_left: What the budget still allows; None without such a budget.
        busy_share: Share of the slots' time in which they had a trial; None before the first.
        slots_s: That time, over all slots; real seconds.
        slots_lost: Slots out of service.
        slots: Busy slot -> what it does.
    """

    study: str
    engine: str
    state: str
    launches: Mapping[str, int] = field(default_factory=dict)
    running: int = 0
    launches_left: int = 0
    settings_left: int | None = None
    best_tok_s: Mapping[str, float] = field(default_factory=dict)
    baseline_tok_s: Mapping[str, float] = field(default_factory=dict)
    phases_s: Mapping[str, float] = field(default_factory=dict)
    gpu_hours: float = 0.0
    gpu_hours_left: float | None = None
    busy_share: float | None = None
    slots_s: float = 0.0
    slots_lost: int = 0
    slots: Mapping[str, Status] = field(default_factory=dict)


def merged(parts: Sequence[SweepNumbers]) -> SweepNumbers:
    """Return the numbers of one sweep from those of its searches, one on each kind of hardware."""
    first = parts[0]
    if len(parts) == 1:
        return first
    launches: Counter[str] = Counter()
    phases_s: dict[str, float] = {}
    for part in parts:
        launches.update(part.launches)
        for phase, seconds in part.phases_s.items():
            phases_s[phase] = phases_s.get(phase, 0.0) + seconds
    shares = [(p.busy_share, p.slots_s) for p in parts if p.busy_share is not None]
    settings = [p.settings_left for p in parts if p.settings_left is not None]
    hours = [p.gpu_hours_left for p in parts if p.gpu_hours_left is not None]
    slots_s = sum(p.slots_s for p in parts)
    return SweepNumbers(
        study=first.study,
        engine=first.engine,
        state=min((p.state for p in parts), key=STATES.index),
        launches=dict(launches),
        running=sum(p.running for p in parts),
        launches_left=sum(p.launches_left for p in parts),
        settings_left=sum(settings) if len(settings) == len(parts) else None,
        best_tok_s={k: v for p in parts for k, v in p.best_tok_s.items()},
        baseline_tok_s={k: v for p in parts for k, v in p.baseline_tok_s.items()},
        phases_s=phases_s,
        gpu_hours=sum(p.gpu_hours for p in parts),
        gpu_hours_left=sum(hours) if len(hours) == len(parts) else None,
        busy_share=sum(share * s for share, s in shares) / slots_s if slots_s else None,
        slots_s=slots_s,
        slots_lost=sum(p.slots_lost for p in parts),
        slots={slot: status for p in parts for slot, status in p.slots.items()},
    )


class Publisher:
    """Draws `SweepNumbers` as Ray's metrics; Ray must be running."""

    def __init__(self) -> None:
        from ray.util.metrics import Counter, Gauge

        self._gauges: dict[str, Any] = {
            name: Gauge(name, description=text, tag_keys=labels)
            for name, (text, labels) in GAUGES.items()
        }
        self._counters: dict[str, Any] = {
            name: Counter(name, description=text, tag_keys=labels)
            for name, (text, labels) in COUNTERS.items()
        }
        self._counted: dict[tuple[str, str], float] = {}
        self._slots: set[str] = set()
        self._last: SweepNumbers | None = None

    def publish(self, numbers: SweepNumbers) -> None:
        """Set all that has changed; returns at once, Ray's agent fetches it within 10 s."""
        if numbers == self._last:
            return
        self._last = numbers
        labels = {"study": numbers.study, "engine": numbers.engine}
        for state in STATES:
            self._set("sweeper_state", float(state == numbers.state), labels | {"state": state})
        for name, value in _plain(numbers).items():
            self._set(name, value, labels)
        for kind, speed in numbers.best_tok_s.items():
            self._set("sweeper_best_output_tok_s", speed, labels | {"hardware": kind})
        for kind, speed in numbers.baseline_tok_s.items():
            self._set("sweeper_baseline_output_tok_s", speed, labels | {"hardware": kind})
        self._slots |= numbers.slots.keys()
        for slot in self._slots:
            self._show(numbers.slots.get(slot), labels | {"slot": slot})
        for outcome, count in numbers.launches.items():
            self._count("sweeper_launches", "outcome", outcome, count, labels)
        for phase, seconds in numbers.phases_s.items():
            self._count("sweeper_phase_seconds", "phase", phase, seconds, labels)

    def _show(self, status: Status | None, labels: Mapping[str, str]) -> None:
        self._set("sweeper_slot_busy", float(status is not None), labels)
        speed = status.output_tok_s if status is not None else None
        self._set("sweeper_slot_measuring", float(speed is not None), labels)
        if status is not None:
            self._set("sweeper_slot_trial", status.number, labels)
            self._set("sweeper_slot_output_tok_s", speed, labels)
            self._set("sweeper_slot_accept_length", status.accept_length, labels)

    def _set(self, name: str, value: float | None, labels: Mapping[str, str]) -> None:
        if value is not None:
            self._gauges[name].set(value, tags=labels)

    def _count(
        self, name: str, label: str, which: str, total: float, labels: Mapping[str, str]
    ) -> None:
        """Bring a counter to `total`; Ray refuses to add 0."""
        more = total - self._counted.get((name, which), 0.0)
        if more > 0:
            self._counters[name].inc(more, tags={**labels, label: which})
            self._counted[name, which] = total


def _plain(numbers: SweepNumbers) -> dict[str, float | None]:
    return {
        "sweeper_running_trials": numbers.running,
        "sweeper_launches_left": numbers.launches_left,
        "sweeper_settings_left": numbers.settings_left,
        "sweeper_gpu_hours_used": numbers.gpu_hours,
        "sweeper_gpu_hours_left": numbers.gpu_hours_left,
        "sweeper_busy_share": numbers.busy_share,
        "sweeper_slots_lost": numbers.slots_lost,
    }
