"""The loop over several kinds of hardware, with an executor whose trials take no time."""

import io
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sweeper.cluster import Assignment, OnHardware, Outcome, Status, SweepNumbers
from sweeper.config import parse_study
from sweeper.errors import Failure, FailureClass, SlotLost, Stage, StopSweep
from sweeper.live import Live
from sweeper.planning.plan import make_plan
from sweeper.planning.strata import divide, hardware_of
from sweeper.records import HostFacts, Launch, Point, Purpose, TrialRecord, TrialState
from sweeper.store import Store
from sweeper.stratum import Numbers, Stratum
from sweeper.study import Study
from sweeper.sweep import Sweep
from sweeper.terminal.display import PlainDisplay
from sweeper.terminal.interrupt import Interrupt
from tests.build import make_record
from tests.test_config import GOOD

#: Slot -> its GPUs.
MIXED = {"slot-0": "H200", "slot-1": "A100", "slot-2": "H200"}


@pytest.fixture
def study() -> Study:
    text = GOOD.replace("launches: 5", "launches: 12")
    found = parse_study(text, "space.yaml").resolved(gpus_present=False)
    return replace(found, slos=())


@dataclass
class Slots:
    """Slots whose trials have ended when they are asked for; A100s are half as fast.

    Attributes:
        kinds: Slot -> its GPUs.
        lose_after: Slot -> trials after which it dies with the next in its hands.
        restarts: Slot -> looks for which it is then on its way again, and not lost.
        out_of_memory: Whether a launch ends without memory for its graphs.
    """

    kinds: dict[str, str]
    lose_after: dict[str, int] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    out_of_memory: Callable[[Launch], bool] = lambda _: False
    lost: dict[str, str] = field(default_factory=dict)
    starting: dict[str, int] = field(default_factory=dict)
    busy: dict[str, Assignment] = field(default_factory=dict)
    ran: Counter[str] = field(default_factory=Counter)
    published: list[SweepNumbers] = field(default_factory=list)
    dashboard_url: str | None = None

    def hardware_of(self, slot: str) -> str | None:
        return self.kinds[slot]

    def free_slots(self) -> list[str]:
        away = self.busy.keys() | self.lost.keys() | self.starting.keys()
        return [s for s in self.kinds if s not in away]

    def starting_slots(self) -> list[str]:
        return list(self.starting)

    def lost_slots(self) -> dict[str, str]:
        return self.lost

    def submit(self, slot: str, assignment: Assignment) -> None:
        assert slot in self.free_slots()
        self.busy[slot] = assignment

    def wait(self, timeout_s: float) -> list[Outcome]:
        self.starting = {s: n - 1 for s, n in self.starting.items() if n > 1}
        if not self.busy:
            return []
        slot = next(iter(self.busy))
        given = self.busy.pop(slot)
        self.ran[slot] += 1
        host = HostFacts(host="node", slot=slot, gpu_name=self.kinds[slot])
        if self.ran[slot] > self.lose_after.get(slot, 10**6):
            if slot in self.restarts:
                self.lose_after.pop(slot)
                self.starting[slot] = self.restarts[slot]
            else:
                self.lost[slot] = "its node is gone"
            return [Outcome(slot=slot, assignment=given, lost=SlotLost("gone"), host=host)]
        speed = 100.0 + given.trial.number
        record = make_record(
            given.trial.number, speed / 2 if self.kinds[slot] == "A100" else speed
        )
        if self.out_of_memory(given.trial.launch):
            record = make_record(
                given.trial.number, state=TrialState.INFEASIBLE, kind=FailureClass.OOM
            )
            failure = Failure(kind=FailureClass.OOM, stage=Stage.GRAPH_CAPTURE, line="no memory")
            record = replace(record, failure=failure)
        return [
            Outcome(
                slot=slot, assignment=given, record=replace(record, trial=given.trial, host=host)
            )
        ]

    def status(self) -> dict[str, Status]:
        return {slot: Status(number=a.trial.number) for slot, a in self.busy.items()}

    def publish(self, numbers: SweepNumbers) -> None:
        self.published.append(numbers)

    def cancel(self) -> None:
        raise AssertionError

    def close(self) -> None:
        raise AssertionError


class FirstLeft:
    """Proposes the first setting that nobody has, and remembers what it is told."""

    def __init__(self, points: list[tuple[str, Point]]) -> None:
        self.points = points
        self.told: list[TrialRecord] = []

    def tell(self, record: TrialRecord) -> None:
        self.told.append(record)

    def ask(self, taken: Collection[str]) -> Point | None:
        return next((point for key, point in self.points if key not in taken), None)

    def stop_reason(self) -> str | None:
        return None

    def merit(self, before: int) -> Mapping[str, float]:
        return {}


@pytest.fixture
def store(tmp_path: Path, study: Study) -> Iterator[Store]:
    with Store(tmp_path / "runs" / "mixed") as made:
        made.create()
        made.keep_study(study.text)
        yield made


def sweep_of(study: Study, store: Store, slots: Slots, out: io.StringIO) -> Sweep:
    plan, numbers, display = make_plan(study), Numbers(store.next_number()), PlainDisplay(out)
    points = [(key, point) for key, (point, _) in plan.settings.items()]
    strata = [
        Stratum(
            study=own,
            store=store,
            executor=OnHardware(slots, kind),
            plan=plan,
            sampler=FirstLeft(points),
            records=[],
            # A search for the best setting takes no time, so that each call has one.
            live=Live(own, plan.settings, kind or "", clock_s=lambda: 0.0),
            numbers=numbers,
            say=display.say,
        )
        for kind, own in divide(study, Counter(slots.kinds.values())).items()
    ]
    return Sweep(study, store, slots, strata, display, Interrupt())


def told(stratum: Stratum) -> list[TrialRecord]:
    assert isinstance(stratum.sampler, FirstLeft)
    return stratum.sampler.told


def test_each_kind_has_its_baseline_and_its_sampler_hears_of_no_other(
    study: Study, store: Store
) -> None:
    slots, out = Slots(MIXED), io.StringIO()
    sweep = sweep_of(study, store, slots, out)
    sweep.run()
    stored = store.records()
    assert [r.trial.number for r in stored] == list(range(12))
    assert Counter(map(hardware_of, stored)) == {"H200": 8, "A100": 4}
    for stratum in sweep.strata:
        assert {hardware_of(r) for r in told(stratum)} == {stratum.live.kind}
        assert Purpose.BASELINE in {r.trial.purpose for r in told(stratum)}
        settings = Counter(r.trial.launch.key for r in told(stratum) if r.trial.point)
        assert max(settings.values()) == 1
    # Both kinds began with the same settings: neither knows what the other has measured.
    first, second = ({r.trial.launch.key for r in told(s)} for s in sweep.strata)
    assert second <= first
    last = slots.published[-1]
    assert last.best_tok_s.keys() == last.baseline_tok_s.keys() == {"H200", "A100"}
    lines = [line for line in out.getvalue().splitlines() if line.startswith("    ")]
    assert {line.split()[0] for line in lines} == {"H200:", "A100:"}


def test_a_kind_that_loses_all_its_slots_leaves_the_other_its_search(
    study: Study, store: Store
) -> None:
    slots = Slots(MIXED, lose_after={"slot-1": 1})
    sweep = sweep_of(study, store, slots, io.StringIO())
    sweep.run()
    counts = Counter((hardware_of(r), r.state) for r in store.records())
    assert counts == {
        ("H200", TrialState.COMPLETE): 8,
        ("A100", TrialState.COMPLETE): 1,
        # The lost trial's row says on which hardware it was.
        ("A100", TrialState.FAILED): 1,
    }
    # What it took counts, as the hours of a budget do.
    (gone,) = [r for r in store.records() if r.state is TrialState.FAILED]
    assert gone.phases_s["lost"] > 0
    why = {s.live.kind: sweep.why_it_ended(s) for s in sweep.strata}
    assert "8 launches of the budget are used" in why["H200"]
    assert why["A100"].startswith("no slot is left")


def test_a_search_goes_on_when_its_only_slot_has_started_anew_though_others_are_over(
    study: Study, store: Store
) -> None:
    # The other kind's search is over long before.
    slots = Slots(MIXED, lose_after={"slot-1": 2}, restarts={"slot-1": 50})
    sweep = sweep_of(study, store, slots, io.StringIO())
    sweep.run()
    counts = Counter((hardware_of(r), r.state) for r in store.records())
    assert counts == {
        ("H200", TrialState.COMPLETE): 8,
        ("A100", TrialState.COMPLETE): 3,
        ("A100", TrialState.FAILED): 1,
    }
    for stratum in sweep.strata:
        assert "launches of the budget are used" in sweep.why_it_ended(stratum)


def test_a_sweep_without_any_slot_left_stops_and_says_why(study: Study, store: Store) -> None:
    slots = Slots(MIXED, lose_after=dict.fromkeys(MIXED, 1))
    with pytest.raises(StopSweep, match=r"no slot is left .*its node is gone"):
        sweep_of(study, store, slots, io.StringIO()).run()
    assert len(store.records()) == 6


@dataclass
class InterruptedWait(Slots):
    """Slots of which none is there before somebody presses Ctrl-C."""

    interrupt: Interrupt | None = None

    def free_slots(self) -> list[str]:
        assert self.interrupt is not None
        self.interrupt.count += 1
        return []


def test_who_interrupts_while_a_slot_is_waited_for_ends_the_sweep_in_order(
    study: Study, store: Store
) -> None:
    slots = InterruptedWait(MIXED)
    sweep = sweep_of(study, store, slots, io.StringIO())
    slots.interrupt = sweep.interrupt
    sweep.run()
    assert {sweep.why_it_ended(stratum) for stratum in sweep.strata} == {"interrupted"}


def test_the_time_left_is_that_of_all_slots_together(study: Study, store: Store) -> None:
    sweep = sweep_of(study, store, Slots(MIXED), io.StringIO())
    stratum = sweep.strata[0]
    assert stratum.seconds_left is None
    stratum._took = (4, 40.0)
    stratum._launched = 4
    stratum._alive = {"slot-0", "slot-2"}
    assert stratum.seconds_left == pytest.approx(4 * 10.0 / 2)


def test_what_failures_rule_out_is_said_of_settings_that_were_not_launched_and_once(
    tmp_path: Path,
) -> None:
    memory = "  memory: {flag: mem-fraction-static, values: [0.99, 0.985, 0.995]}\n"
    text = GOOD.replace("parameters:\n", "parameters:\n" + memory).replace("[1, 2, 3]", "[1]")
    text = text.replace("values: [1, 2]", "values: [1]").replace("launches: 5", "launches: 9")
    text = text.replace("known: [{steps: 3}]\n", "").replace("      off:", "#")
    study = replace(parse_study(text, "space.yaml").resolved(gpus_present=False), slos=())
    slots, out = Slots({"slot-0": "H200"}), io.StringIO()
    slots.out_of_memory = lambda launch: "mem-fraction-static" in launch.flags
    with Store(tmp_path / "runs" / "memory") as store:
        store.create()
        store.keep_study(study.text)
        sweep_of(study, store, slots, out).run()
        points = [dict(r.trial.point) for r in store.records()]
    assert [point.get("memory") for point in points] == [None, 0.99, 0.985]
    said = [line for line in out.getvalue().splitlines() if "no longer launched" in line]
    assert len(said) == 1
    assert "as large or larger than in trial 1 (" in said[0]
    assert "memory fraction 0.99), otherwise equal: oom at graph_capture (1 setting)" in said[0]
