"""What each sampler would need, by sweeps simulated on the model."""

import io
from collections.abc import Callable

from sweeper.planning.plan import make_plan
from sweeper.sampler import Forecast, forecast
from sweeper.sampler.forecast import WORLDS
from sweeper.terminal.outlook import hours_a_launch, print_forecasts
from tests.sampler.worlds import PLAIN, SMALL, record, small_study, sweep


def frozen() -> float:
    return 0.0


def ticking(step_s: float) -> Callable[[], float]:
    """Return a clock that goes on by `step_s` each time it is looked at."""
    now_s = 0.0

    def look() -> float:
        nonlocal now_s
        now_s += step_s
        return now_s

    return look


def by_name(found: list[Forecast]) -> dict[str, Forecast]:
    return {one.sampler: one for one in found}


def test_each_sampler_has_a_forecast_or_a_reason() -> None:
    study = small_study()
    found = forecast(study, make_plan(study), [], now_s=frozen, limit_s=1.0)
    assert sorted(by_name(found)) == ["auto", "gp", "grid", "nsga2", "random", "tpe"]
    for one in found:
        assert (one.launches is None) == bool(one.reason)
        assert one.worlds == (0 if one.reason else WORLDS)
        assert one.launches is None or 1 <= one.launches <= 1 + len(make_plan(study).settings)
    assert by_name(found)["gp"].reason


def test_forecasts_are_the_same_again() -> None:
    study = small_study(PLAIN, seed=4)
    plan = make_plan(study)
    one = forecast(study, plan, [], now_s=frozen, limit_s=1.0)
    assert one == forecast(study, plan, [], now_s=frozen, limit_s=1.0)


def test_a_sweep_that_the_time_cuts_is_a_lower_bound() -> None:
    study = small_study()
    found = by_name(forecast(study, make_plan(study), [], now_s=ticking(1.0), limit_s=2.0))
    assert found["auto"].at_least
    assert found["auto"].worlds == 1
    assert not found["random"].at_least


def test_stored_trials_make_the_forecast_shorter() -> None:
    study = small_study()
    plan = make_plan(study)
    records, _ = sweep(study, 16)
    cold = by_name(forecast(study, plan, [], now_s=frozen, limit_s=1.0))["random"]
    warm = by_name(forecast(study, plan, records, now_s=frozen, limit_s=1.0))["grid"]
    # What is known says where the best ones stand in the order; by chance nothing is known.
    assert warm.worlds == cold.worlds == WORLDS
    assert warm.launches is not None


def test_limits_and_two_objectives_are_simulated_too() -> None:
    text = SMALL.replace(
        "objectives: [{maximize: output_tok_s, workload: single}]",
        "slo: [single.ttft_p99_ms < 500]\n"
        "objectives: [{maximize: output_tok_s, workload: single},"
        " {maximize: output_tok_s_per_gpu, workload: busy}]",
    )
    study = small_study(text)
    found = forecast(study, make_plan(study), [], now_s=frozen, limit_s=1.0)
    assert by_name(found)["auto"].launches is not None


def test_a_limit_that_no_setting_keeps_leaves_a_forecast() -> None:
    study = small_study(SMALL + "slo: [single.ttft_p99_ms < 5]\n")
    plan = make_plan(study)
    records, _ = sweep(study, 8)
    found = by_name(forecast(study, plan, records, now_s=frozen, limit_s=1.0))
    for name in ("auto", "random", "grid"):
        launches = found[name].launches
        assert launches is not None
        assert 1 <= launches <= len(plan.settings)


def test_hours_come_from_stored_launches_where_there_are_some() -> None:
    study = small_study()
    assert hours_a_launch(study, [record(study, 0, {})]) == (60.0 + 10.0) / 3600.0
    assert hours_a_launch(study, []) > 0


def test_the_table_says_launches_and_hours() -> None:
    out = io.StringIO()
    forecasts = [
        Forecast(sampler="auto", launches=9, worlds=5),
        Forecast(sampler="tpe", launches=60, at_least=True, worlds=3),
        Forecast(sampler="gp", reason="torch is not installed"),
    ]
    print_forecasts(forecasts, 12, 0.2, out)
    lines = out.getvalue().splitlines()
    assert "fitted to 12 stored trials" in lines[0]
    assert lines[1].split()[:4] == ["auto", "9", "launches", "1.8"]
    assert lines[2].split()[:4] == ["tpe", ">60", "launches", ">12.0"]
    assert "gp       not simulated: torch is not installed" in lines[3]
