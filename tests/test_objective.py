import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.errors import UserError
from sweeper.judging.standings import baseline, best, dominates, pareto_front, standings
from sweeper.objective import Objective, Slo, broken_slos, parse_slo, values
from sweeper.records import Purpose, TrialState
from tests.build import make_launch, make_record

SPEED = (Objective(metric="output_tok_s"),)
BOTH = (Objective(metric="output_tok_s"), Objective(metric="ttft_p99_ms", maximize=False))


def test_the_best_setting_is_the_fastest_that_is_no_baseline() -> None:
    records = [
        make_record(0, 200.0, purpose=Purpose.BASELINE),
        make_record(1, 80.0),
        make_record(2, 94.0),
    ]
    found = standings(records, SPEED)
    base, top = baseline(found), best(found, SPEED)
    assert base is not None
    assert top is not None
    assert base.values == (200.0,)
    assert top.records[0].trial.number == 2


def test_of_a_tie_the_simpler_setting_wins() -> None:
    records = [make_record(5, 100.0), make_record(2, 99.2), make_record(1, 98.0)]
    top = best(standings(records, SPEED), SPEED)
    assert top is not None
    assert top.records[0].trial.number == 2


def test_a_setting_is_judged_by_the_median_of_its_trials() -> None:
    launch = make_launch(flags={"speculative-num-steps": 2})
    records = [make_record(n, v, launch=launch) for n, v in enumerate((90.0, 92.0, 300.0))]
    (standing,) = standings(records, SPEED)
    assert standing.values == (92.0,)


def test_trials_that_are_not_complete_or_not_measured_have_no_standing() -> None:
    records = [
        make_record(0, state=TrialState.FAILED),
        make_record(1, state=TrialState.INFEASIBLE),
        make_record(2, None),
    ]
    assert standings(records, SPEED) == []
    assert best([], SPEED) is None
    assert baseline([]) is None


def test_a_setting_that_breaks_a_limit_cannot_win() -> None:
    slo = parse_slo("ttft_p99_ms < 500", ["single"])
    records = [
        make_record(1, 120.0, measurement={"ttft_p99_ms": 900.0}),
        make_record(2, 90.0, measurement={"ttft_p99_ms": 100.0}),
        make_record(3, 130.0, measurement={"ttft_p99_ms": None}),
    ]
    found = standings(records, SPEED, (slo,))
    assert [s.broken for s in found] == [(slo.text,), (), (slo.text,)]
    top = best(found, SPEED)
    assert top is not None
    assert top.records[0].trial.number == 2


@pytest.mark.parametrize("order", sorted(set(itertools.permutations((900.0, 900.0, 100.0)))))
def test_a_limit_that_most_trials_break_is_broken_whatever_their_order(
    order: tuple[float, ...],
) -> None:
    slo = parse_slo("ttft_p99_ms < 500", ["single"])
    launch = make_launch(flags={"speculative-num-steps": 2})
    records = [
        make_record(n, 90.0, launch=launch, measurement={"ttft_p99_ms": ttft})
        for n, ttft in enumerate(order)
    ]
    (standing,) = standings(records, SPEED, (slo,))
    assert standing.broken == (slo.text,)
    (kept,) = standings(records, SPEED, (parse_slo("ttft_p99_ms < 901", ["single"]),))
    assert kept.broken == ()


@pytest.mark.parametrize(
    ("operator", "keeps"),
    [("<", (0,)), ("<=", (0, 1)), (">", (2,)), (">=", (1, 2))],
)
def test_a_limit_means_at_its_bound_what_its_sign_says(
    operator: str, keeps: tuple[int, ...]
) -> None:
    slo = parse_slo(f"retractions {operator} 1", ["single"])
    records = [make_record(n, measurement={"retractions": n}) for n in range(3)]
    assert tuple(n for n in range(3) if not broken_slos(records[n], (slo,))) == keeps
    assert all(((slo.excess(r) or 0.0) > 0) == bool(broken_slos(r, (slo,))) for r in records)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft_p99_ms < 500", Slo(metric="ttft_p99_ms", operator="<", bound=500)),
        (
            "busy.output_tok_s>=1e3",
            Slo(metric="output_tok_s", operator=">=", bound=1000, workload="busy"),
        ),
    ],
)
def test_limits_are_read(text: str, expected: Slo) -> None:
    assert parse_slo(text, ["busy"]) == expected


def test_a_limit_without_a_workload_is_about_the_studys_first_one_whatever_was_sent_first() -> (
    None
):
    slo = parse_slo("ttft_p99_ms < 500", ["single", "busy"])
    record = make_record(1, measurement={"ttft_p99_ms": 100.0})
    single = record.measurements[0]
    busy = replace(single, workload="busy", ttft_p99_ms=2000.0)
    both = replace(record, measurements=(busy, single))
    assert slo.excess(both) == -400.0
    assert broken_slos(both, (slo,)) == ()
    assert slo.excess(replace(record, measurements=(busy,))) is None


@pytest.mark.parametrize("text", ["ttft < 5", "ttft_p99_ms", "x.ttft_p99_ms < 5", "a b < 1"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        parse_slo(text, ["busy"])


def test_the_front_holds_what_nothing_dominates() -> None:
    rows = {1: (100.0, 50.0), 2: (90.0, 40.0), 3: (90.0, 60.0), 4: (100.0, 50.0)}
    records = [
        make_record(n, speed, measurement={"ttft_p99_ms": ttft})
        for n, (speed, ttft) in rows.items()
    ]
    front = pareto_front(standings(records, BOTH), BOTH)
    assert [s.records[0].trial.number for s in front] == [1, 2, 4]


point = st.tuples(st.floats(0, 100), st.floats(0, 100))


@given(point, point, point)
def test_dominance_is_a_strict_partial_order(
    a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]
) -> None:
    assert not dominates(a, a, BOTH)
    if dominates(a, b, BOTH):
        assert not dominates(b, a, BOTH)
        if dominates(b, c, BOTH):
            assert dominates(a, c, BOTH)


def test_values_keep_the_order_of_the_objectives() -> None:
    record = make_record(0, 90.0, measurement={"ttft_p99_ms": 12.0})
    assert values(record, BOTH) == (90.0, 12.0)
    assert values(record, tuple(reversed(BOTH))) == (12.0, 90.0)
