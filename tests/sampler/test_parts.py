"""The sampler's pure parts: evidence, failures, acquisition, the even sequence."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.planning.plan import make_plan
from sweeper.records import Measurement, Point
from sweeper.sampler.acquire import (
    Mask,
    chance_of_best,
    chance_of_better,
    hypervolume,
    knowledge,
)
from sweeper.sampler.evidence import Evidence, evidence_of, targets_of
from sweeper.sampler.failures import chance_to_work
from sweeper.sampler.halton import halton_points
from sweeper.sampler.histograms import counts_of
from sweeper.sampler.propose import basis
from sweeper.sampler.replay import distribution, encode
from sweeper.sampler.table import UNSET, make_table
from sweeper.speculation import Array, fit, fits
from sweeper.study import Study
from tests.build import make_record
from tests.sampler.worlds import PLAIN, SMALL, rng, small_study

POINTS: list[Point] = [{"a": a, "b": b} for a in (1, 2, 3) for b in ("x", "y", "z")]


def feasible(gains: Array) -> Mask:
    return np.ones(gains.shape, dtype=bool)


@pytest.mark.parametrize(
    ("measured", "length"),
    [
        ({"accepted_histogram": (50, 30, 20)}, 1.7),
        ({"accepted_histogram": None, "accepted_by_position": (0.5, 0.2)}, 1.7),
        ({"accepted_histogram": None, "accepted_by_position": None}, 1.7),
    ],
)
def test_the_accept_length_is_kept_however_little_is_known(
    measured: Mapping[str, object], length: float
) -> None:
    study = small_study()
    record = make_record(2)
    launch = study.launch(study.space.canonical({"steps": 2}))
    given: dict[str, object] = {
        "workload": "single",
        "requests": 1,
        "output_tokens": 170,
        "accept_length": length,
        "output_tok_s": 90.0,
    }
    changed = replace(
        record,
        trial=replace(record.trial, launch=launch),
        requests=(),
        measurements=(Measurement(**{**given, **measured}),),  # type: ignore[arg-type]
    )
    found = evidence_of(changed, targets_of(study)).accepted["single"][""]
    steps = sum(found)
    assert sum((i + 1) * n for i, n in enumerate(found)) / steps == pytest.approx(length, rel=1e-3)


def test_histograms_are_kept_by_prompt_kind() -> None:
    study = small_study()
    record = make_record(2)
    launch = study.launch(study.space.canonical({"steps": 2}))
    told = replace(record.measurements[0], accepted_by_kind={"chat": (100, 100, 50)})
    record = replace(
        record, trial=replace(record.trial, launch=launch), requests=(), measurements=(told,)
    )
    assert evidence_of(record, targets_of(study)).accepted == {
        "single": {"chat": (100.0, 100.0, 50.0)}
    }


@pytest.mark.parametrize(
    ("measured", "kind"),
    [
        ({"accepted_by_kind": {"chat": (600, 400)}}, "chat"),
        ({"accepted_histogram": (600, 400)}, ""),
        ({"accepted_histogram": None, "accepted_by_position": (0.4,)}, ""),
    ],
)
def test_a_position_that_was_tried_and_never_accepted_is_known_to_be_refused(
    measured: Mapping[str, object], kind: str
) -> None:
    study = small_study()
    table = make_table(study, make_plan(study))
    given = make_record(2)
    launch = study.launch(study.space.canonical({"steps": 4, "topk": 1}))
    told = replace(given.measurements[0], accept_length=1.4, output_tokens=1400, **measured)  # type: ignore[arg-type]
    changed = replace(given, trial=replace(given.trial, launch=launch), measurements=(told,))
    found = evidence_of(changed, targets_of(study))
    assert found.accepted["single"][kind] == pytest.approx((600.0, 400.0, 0.0, 0.0, 0.0))
    _, position, tried, accepted = counts_of(table, [found], "single").survival()
    assert list(position) == [0, 1]
    assert tried == pytest.approx([1000.0, 400.0])
    assert accepted == pytest.approx([400.0, 0.0])


@pytest.mark.parametrize(
    ("flags", "labels", "unset"),
    [
        ("{}", (1024, 2048, 4096, 16384, UNSET), True),
        ("{chunked-prefill-size: 8192}", (1024, 2048, 4096, 8192.0, 16384), False),
        ("{chunked-prefill-size: 4096}", (1024, 2048, 4096, 16384), False),
        ("{chunked-prefill-size: -1}", (1024, 2048, 4096, 16384, UNSET), True),
    ],
)
def test_numbers_stay_numbers_whatever_the_baseline_has(
    flags: str, labels: tuple[object, ...], unset: bool
) -> None:
    study = small_study(PLAIN.replace("flags: {}", f"flags: {flags}"))
    factors = {f.name: f for f in make_table(study, make_plan(study)).factors}
    assert factors["chunk"].labels == labels
    assert factors["chunk"].numeric
    assert factors["chunk"].unset is unset
    assert not factors["nccl"].numeric
    assert not factors["nccl"].unset


@pytest.mark.parametrize(
    ("more", "labels", "numeric"),
    [
        ("}", (1, 16, 64, UNSET), True),
        (", otherwise: \"'off'\"}", ("off", 1, 16, 64, UNSET), False),
        (", otherwise: '4'}", (1, 4, 16, 64, UNSET), True),
    ],
)
def test_numbers_beside_words_of_the_files_own_are_no_scale(
    more: str, labels: tuple[object, ...], numeric: bool
) -> None:
    drawn = "buffer: {env: NCCL_BUFFSIZE, values: [1, 16, 64], when: nccl == 'ring'" + more
    study = small_study(PLAIN.replace("parameters:", f"parameters:\n  {drawn}"))
    factors = {f.name: f for f in make_table(study, make_plan(study)).factors}
    assert factors["buffer"].labels == labels
    assert factors["buffer"].numeric is factors["buffer"].unset is numeric


def test_a_value_that_makes_every_launch_fail_is_avoided() -> None:
    failed: list[Point] = [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]
    fine: list[Point] = [{"a": 1, "b": "y"}, {"a": 2, "b": "z"}, {"a": 3, "b": "y"}]
    works = dict(zip(map(str, POINTS), chance_to_work(POINTS, failed, fine), strict=True))
    assert works[str({"a": 3, "b": "x"})] < 0.3
    assert min(v for k, v in works.items() if "x" not in k) > 0.8


def test_a_pair_that_fails_leaves_its_values_their_chance() -> None:
    failed: list[Point] = [{"a": 1, "b": "x"}]
    fine: list[Point] = [
        {"a": 1, "b": "y"},
        {"a": 1, "b": "z"},
        {"a": 2, "b": "x"},
        {"a": 3, "b": "x"},
    ]
    works = dict(zip(map(str, POINTS), chance_to_work(POINTS, failed, fine), strict=True))
    assert works[str({"a": 1, "b": "x"})] < 0.5
    assert min(v for k, v in works.items() if k != str({"a": 1, "b": "x"})) > 0.8


@given(
    st.lists(st.sampled_from(POINTS), max_size=6), st.lists(st.sampled_from(POINTS), max_size=6)
)
def test_a_chance_to_work_is_a_chance(failed: list[Point], fine: list[Point]) -> None:
    works = chance_to_work(POINTS, failed, fine)
    assert np.all((works > 0) & (works <= 1))


@given(st.integers(0, 1000))
def test_of_two_sure_settings_the_better_is_the_best(seed: int) -> None:
    gains = rng(seed).normal(size=(50, 1)) + np.array([[0.0, 0.1, -0.3]])
    chance = chance_of_best(gains, feasible(gains))
    assert list(chance) == [0.0, 1.0, 0.0]


def test_a_setting_that_breaks_its_limits_is_not_the_best() -> None:
    gains = np.tile([0.0, 1.0], (10, 1))
    allowed = np.tile([True, False], (10, 1))
    assert list(chance_of_best(gains, allowed)) == [1.0, 0.0]


def test_knowledge_is_worth_most_where_the_doubt_can_change_the_choice() -> None:
    noise = rng(0).normal(size=(400, 4))
    gains = np.array([0.0, -0.02, -0.02, -1.0]) + noise * np.array([0.001, 0.05, 0.001, 0.05])
    found = knowledge(gains, feasible(gains), 0.01)
    assert int(np.argmax(found)) == 1
    assert found[3] == pytest.approx(0.0, abs=1e-6)


def test_volume_grows_by_what_the_front_does_not_cover() -> None:
    first = np.tile([1.0, 0.0, 0.5, 0.9, -1.0], (64, 1))
    second = np.tile([0.0, 1.0, 0.9, 0.05, -1.0], (64, 1))
    launched = np.array([True, True, False, False, False])
    found = hypervolume((first, second), feasible(first), launched, rng(0))
    assert int(np.argmax(found)) == 2
    assert found[2] > found[3] > found[4] == 0.0


def test_the_chance_of_something_better_is_zero_once_all_is_launched() -> None:
    gains = rng(1).normal(size=(30, 3))
    assert chance_of_better(gains, feasible(gains), np.ones(3, dtype=bool), 1.0) == 0.0


def test_a_model_that_errs_more_than_it_should_stops_later() -> None:
    gains = np.array([0.0, -0.05]) + rng(2).normal(size=(2000, 2)) * np.array([0.001, 0.02])
    launched = np.array([True, False])
    honest = chance_of_better(gains, feasible(gains), launched, 1.0)
    wrong = chance_of_better(gains, feasible(gains), launched, 3.0)
    assert honest < 0.05 < wrong


def test_the_even_sequence_is_even_and_repeats_by_its_seed() -> None:
    space = small_study(PLAIN).space
    points = list(islice(halton_points(space, 3), 36))
    assert points == list(islice(halton_points(space, 3), 36))
    assert points != list(islice(halton_points(space, 4), 36))
    for parameter in space.parameters:
        counts = [sum(p[parameter.name] == v for p in points) for v in parameter.values]
        fair = 36 / len(counts)
        assert all(fair * 0.6 <= n <= fair * 1.5 for n in counts)


@pytest.mark.parametrize("text", [SMALL, PLAIN])
def test_every_setting_can_be_written_as_an_optuna_trial(text: str) -> None:
    study = small_study(text)
    by_name = {p.name: p for p in study.space.parameters}
    for point, _ in make_plan(study).settings.values():
        for name, value in encode(study.space, point).items():
            made = distribution(by_name[name])
            assert made._contains(made.to_internal_repr(value))


def test_the_baseline_has_a_level_of_each_factor() -> None:
    study = small_study()
    table = make_table(study, make_plan(study))
    baseline = table.row[study.baseline_launch().key]
    assert baseline == table.plan_rows
    assert table.settings[baseline].shape is None
    assert [
        f.labels[v] for f, v in zip(table.factors, table.settings[baseline].levels, strict=True)
    ] == ["default"]


def told(study: Study, number: int, steps: int, **accepted: tuple[float, ...]) -> Evidence:
    launch = study.launch(study.space.canonical({"steps": steps}))
    return Evidence(
        number=number,
        key=launch.key,
        values=(90.0,),
        accepted={"single": accepted},
        gpu_s=None,
        unfit=False,
    )


def test_histograms_are_added_up_by_setting_and_kind() -> None:
    study = small_study()
    table = make_table(study, make_plan(study))
    evidence = [
        told(study, 1, 2, chat=(50.0, 30.0, 20.0), code=(10.0, 10.0, 80.0)),
        told(study, 2, 2, chat=(50.0, 30.0, 20.0)),
        told(study, 3, 1, chat=(40.0, 60.0)),
    ]
    counts = counts_of(table, evidence, "single")
    assert counts.kinds == ("chat", "code")
    found = {
        (r, k): tuple(steps)
        for r, k, steps in zip(counts.row, counts.kind, counts.steps, strict=True)
    }
    two, one = table.row[evidence[0].key], table.row[evidence[2].key]
    assert found == {
        (two, 0): (100.0, 60.0, 40.0),
        (two, 1): (10.0, 10.0, 80.0),
        (one, 0): (40.0, 60.0, 0.0),
    }
    length, variance = counts.lengths()[one]
    assert np.exp(length) == pytest.approx(1.6)
    assert variance == pytest.approx(0.24 / 100 / 1.6**2)
    chances = {
        (counts.row[i], counts.kind[i], j): a / t
        for i, j, t, a in zip(*counts.survival(), strict=True)
    }
    assert chances == {
        (two, 0, 0): 0.5,
        (two, 0, 1): 0.4,
        (two, 1, 0): 0.9,
        (two, 1, 1): pytest.approx(80 / 90),
        (one, 0, 0): 0.6,
    }
    made = (100 + 120 + 120) + (10 + 20 + 240) + (40 + 120)
    assert counts.shares() == pytest.approx([500 / made, 270 / made])


def test_kinds_are_pooled_where_one_trial_does_not_tell_them_apart() -> None:
    study = small_study()
    table = make_table(study, make_plan(study))
    evidence = [
        told(study, 1, 1, chat=(40.0, 60.0), code=(10.0, 90.0)),
        told(study, 2, 2, **{"": (50.0, 30.0, 20.0)}),
    ]
    counts = counts_of(table, evidence, "single")
    assert counts.kinds == ("",)
    assert sorted(map(tuple, counts.steps)) == [(50.0, 30.0, 20.0), (50.0, 150.0, 0.0)]
    assert counts_of(table, [], "single").shares() == pytest.approx([1.0])


@given(st.integers(0, 5000))
def test_the_model_is_fitted_to_nearly_all_trials(launches: int) -> None:
    used = basis(launches)
    assert 0.9 * launches <= used <= launches
    assert launches >= 40 or used == launches
    assert basis(used) == used


def test_a_long_sweep_fits_the_model_a_few_times_in_each_doubling() -> None:
    assert len({basis(n) for n in range(1001)}) < 100


def test_several_priors_are_fitted_as_one_by_one() -> None:
    rows = rng(3).normal(size=(7, 3))
    values, noise = rng(4).normal(size=7), np.full(7, 0.3)
    sds = [np.full(3, 0.5), np.array([0.1, 1.0, 2.0])]
    for sd, many in zip(sds, fits(rows, values, noise, np.ones(3), sds), strict=True):
        one = fit(rows, values, noise, np.ones(3), sd)
        # The same posterior by its covariance form.
        covariance = np.diag(sd**2)
        of_values = rows @ covariance @ rows.T + np.diag(noise)
        left = values - rows @ np.ones(3)
        mean = 1 + covariance @ rows.T @ np.linalg.solve(of_values, left)
        evidence = -0.5 * (
            left @ np.linalg.solve(of_values, left)
            + np.linalg.slogdet(of_values)[1]
            + 7 * np.log(2 * np.pi)
        )
        assert many.mean == pytest.approx(mean) == one.mean
        assert many.evidence == pytest.approx(evidence) == one.evidence
