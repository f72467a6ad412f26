"""What a sweep publishes, and that many slots follow the rules of one."""

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

import pytest

from sweeper.cluster import Status
from sweeper.config import parse_study
from sweeper.errors import FailureClass
from sweeper.live import Live
from sweeper.planning.agenda import Ledger, next_trial
from sweeper.planning.plan import make_plan
from sweeper.records import Point, Purpose, Trial, TrialRecord, TrialState
from sweeper.study import Budget, Study
from tests.build import make_record
from tests.test_config import GOOD


@pytest.fixture
def study() -> Study:
    text = GOOD.replace("launches: 5", "launches: 40")
    return parse_study(text, "space.yaml").resolved(gpus_present=False)


def record_of(trial: Trial, state: TrialState = TrialState.COMPLETE) -> TrialRecord:
    return replace(
        make_record(trial.number, 100.0, state=state, kind=FailureClass.NODE_LOST), trial=trial
    )


def test_the_numbers_add_up_over_calls_and_count_each_record_once(study: Study) -> None:
    live = Live(study, make_plan(study).settings)
    first = make_record(0, purpose=Purpose.BASELINE, point={})
    second = make_record(1, state=TrialState.FAILED)
    one = live.numbers([first], [], status={}, lost=0, stopping=False, now_s=0.0)
    assert (one.state, one.launches) == ("ended", {"complete": 1})
    running = [make_record(2).trial]
    status = {"slot-0": Status(number=2, output_tok_s=80.0, accept_length=1.5)}
    two = live.numbers([first, second], running, status=status, lost=1, stopping=False, now_s=9.0)
    assert two.state == "searching"
    assert two.launches == {"complete": 1, "failed": 1}
    assert two.running == 1
    assert two.launches_left == 37
    assert two.phases_s == {"start": 20.0, "measure": 40.0, "stop": 2.0}
    assert two.gpu_hours == pytest.approx(2 * 31.0 * 8 / 3600)
    assert two.baseline_tok_s == {"": 100.0}
    assert two.slots == status
    assert two.slots_lost == 1
    three = live.numbers(
        [first, second], running, status=status, lost=1, stopping=True, now_s=10.0
    )
    assert three == replace(two, state="stopping")


def test_missing_numbers_are_none_and_never_0(study: Study) -> None:
    live = Live(replace(study, budget=Budget(launches=3, hours=None)), None)
    numbers = live.numbers([], [], status={}, lost=0, stopping=False, now_s=0.0)
    assert numbers.best_tok_s == numbers.baseline_tok_s == {}
    assert numbers.settings_left is None
    assert numbers.gpu_hours_left is None
    assert numbers.busy_share is None


def test_the_busy_share_counts_only_while_something_is_left(study: Study) -> None:
    live = Live(study, None)
    live.note(0.0, busy=2, free=0)
    live.freed(10.0, 1)  # two slots were busy for 10 s
    live.note(11.0, busy=2, free=0)  # one of two idle for 1 s
    live.pause(21.0)
    assert live.busy_share == pytest.approx((20 + 1 + 20) / (20 + 2 + 20))
    live.freed(100.0, 1)  # nothing was left, so this does not count
    live.pause(200.0)
    assert live.busy_share == pytest.approx(41 / 42)


class FirstLeft:
    """Asks for the first setting of the plan that is not taken."""

    def __init__(self, study: Study) -> None:
        self.settings = make_plan(study).settings

    def __call__(self, taken: Collection[str]) -> Point | None:
        return next((p for key, (p, _) in self.settings.items() if key not in taken), None)


@pytest.mark.parametrize("slots", [1, 2, 7, 64])
@pytest.mark.parametrize("seed", range(5))
def test_many_slots_launch_what_one_does_in_whatever_order_they_end(
    study: Study, slots: int, seed: int
) -> None:
    chance, ask = random.Random(seed), FirstLeft(study)
    settings = make_plan(study).settings
    records: list[TrialRecord] = []
    running: list[Trial] = []
    number = 0
    while True:
        while len(running) < slots:
            ledger = Ledger(
                study=study,
                records=records,
                running=running,
                next_number=number,
                settings=settings,
            )
            trial = next_trial(ledger, ask)
            if trial is None:
                break
            number += 1
            running.append(trial)
        if not running:
            break
        ended = running.pop(chance.randrange(len(running)))
        lost = chance.random() < 0.1 and ended.attempt == 0
        records.append(record_of(ended, TrialState.FAILED if lost else TrialState.COMPLETE))
    done = Counter(r.trial.launch.key for r in records if r.state is TrialState.COMPLETE)
    assert sorted(r.trial.number for r in records) == list(range(number))
    assert number <= study.budget.launches
    assert set(done.values()) == {1}
    assert done.keys() == settings.keys() | {study.baseline_launch().key}
    assert sum(r.trial.purpose is Purpose.BASELINE for r in records) >= 1
