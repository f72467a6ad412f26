import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.judging.standings import standings
from sweeper.objective import Objective, trend
from sweeper.records import HostFacts, Purpose, TrialRecord
from sweeper.statistics.trend import LAUNCH_NOISE, Sample, roughness, trend_of
from tests.build import make_launch, make_record

SPEED = (Objective(metric="output_tok_s"),)
HOUR_S = 3600.0


def sample(number: int, value: float, *, place: str = "a", hours: float | None = None) -> Sample:
    return Sample(
        number=number,
        place=place,
        time_s=HOUR_S * (number if hours is None else hours),
        passes=(value,),
        log=math.log(value),
        squares=0.0,
    )


def at(
    number: int, tok_s: float, hour: int, slot: str = "slot-0", **changes: object
) -> TrialRecord:
    record = make_record(number, tok_s, **changes)  # type: ignore[arg-type]
    return replace(
        record,
        started_at=f"2026-11-29T{hour:02d}:00:00+00:00",
        host=HostFacts(host="node", slot=slot),
        phases_s={},
    )


def base(number: int, tok_s: float, hour: int, slot: str = "slot-0") -> TrialRecord:
    return at(number, tok_s, hour, slot, purpose=Purpose.BASELINE, launch=make_launch())


def test_one_baseline_tells_nothing_of_drift() -> None:
    moved = trend_of([sample(0, 90.0)])
    assert (moved.drifted, moved.factor(sample(1, 95.0))) == (False, 1.0)


def test_values_are_taken_against_the_baseline_around_them() -> None:
    records = [base(0, 100.0, 0), at(1, 100.0, 5), at(2, 95.0, 10), base(3, 90.0, 10)]
    first, second = (s.values[0] for s in standings(records, SPEED) if not s.is_baseline)
    assert trend(records, SPEED[0]).drifted
    assert first < second
    assert first / second == pytest.approx(100 / math.sqrt(100 * 90) / (95 / 90))


def test_a_spread_within_the_noise_is_no_drift_and_changes_nothing() -> None:
    records = [base(0, 90.0, 0), at(1, 95.0, 1), base(2, 91.0, 2)]
    assert not trend(records, SPEED[0]).drifted
    assert [s.values[0] for s in standings(records, SPEED)] == [90.5, 95.0]


def test_noise_of_the_passes_is_not_taken_for_drift() -> None:
    rng = np.random.default_rng(0)
    drifted = 0
    for _ in range(100):
        samples = []
        for number in range(5):
            logs = rng.normal(0, LAUNCH_NOISE) + rng.normal(math.log(90), 0.05, size=4)
            passes = tuple(float(v) for v in np.exp(logs))
            middle = float(logs.mean())
            squares = float(((logs - middle) ** 2).sum())
            samples.append(
                replace(sample(number, 90.0), passes=passes, log=middle, squares=squares)
            )
        drifted += trend_of(samples).drifted
    assert drifted <= 5


def test_slots_are_not_mixed_up() -> None:
    samples = [sample(0, 100.0), sample(1, 80.0, place="b"), sample(2, 100.0)]
    moved = trend_of(samples)
    assert moved.factor(sample(3, 1.0, hours=1.0)) / moved.factor(
        sample(4, 1.0, hours=1.0, place="b")
    ) == pytest.approx(100 / 80)
    assert moved.factor(sample(5, 1.0, place="c")) == 1.0


def test_between_launches_that_disagree_a_value_is_in_doubt() -> None:
    moved = trend_of([sample(0, 100.0), sample(2, 100.0), sample(4, 85.0), sample(6, 85.0)])
    doubts = [moved.doubt(sample(9, 1.0, hours=h)) for h in (1, 3, 5)]
    assert doubts[0] == doubts[2] == 0.0
    assert doubts[1] == pytest.approx(100 / 85 - 1)


@given(st.lists(st.floats(50, 150), min_size=2, max_size=8), st.floats(-1, 10))
def test_a_factor_lies_between_the_baselines_own(values: list[float], hours: float) -> None:
    moved = trend_of([sample(i, v) for i, v in enumerate(values)])
    factor = moved.factor(sample(99, 1.0, hours=hours))
    if moved.drifted and moved.level:
        assert min(values) <= factor * moved.level * 1.000001
        assert factor * moved.level <= max(values) * 1.000001
    else:
        assert factor == 1.0


@pytest.mark.parametrize("slope", [0.0, 0.01])
def test_bends_tell_the_noise_whatever_the_slope_and_whatever_jumps(slope: float) -> None:
    rng = np.random.default_rng(1)
    found = []
    for _ in range(200):
        logs = math.log(90) + slope * np.arange(10) + rng.normal(0, 0.02, size=10)
        logs[5:] -= 0.3
        squares, freedom = roughness(
            trend_of([sample(i, float(np.exp(x))) for i, x in enumerate(logs)])
        )
        found.append(squares / freedom)
    assert 0.01 < math.sqrt(float(np.median(found))) < 0.04


@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_an_hour_of_drift_is_an_hour_of_engine_time(scale: float) -> None:
    """A simulated node loses as much in an hour however fast its clock runs."""
    begun = datetime(2026, 11, 29, tzinfo=UTC)
    records = []
    for number in range(6):
        record = base(number, 100.0 * 0.98**number, 0)
        assert record.server is not None
        records.append(
            replace(
                record,
                started_at=(begun + timedelta(hours=number / scale)).isoformat(),
                server=replace(record.server, time_scale=scale),
                phases_s={"start": 600.0, "measure": 60.0},
            )
        )
    line = trend(records, SPEED[0]).line
    assert line is not None
    assert line.share_per_hour == pytest.approx(-0.02, rel=0.05)
