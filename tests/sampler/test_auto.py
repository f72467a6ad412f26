"""The model-based search: what it finds, what it avoids, when it says stop."""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from multiprocessing import get_context

import numpy as np
import pytest

from benchmarks.search_landscapes import Landscape, calibrated
from sweeper.config import find_space, load_study
from sweeper.errors import FailureClass
from sweeper.judging.standings import best, standings
from sweeper.planning.families import ruled_out, rules
from sweeper.planning.plan import make_plan
from sweeper.records import Point, Purpose, TrialRecord, TrialState
from sweeper.sampler import make_sampler
from tests.sampler.worlds import PLAIN, SMALL, keys, record, small_study, speed_of, sweep

BEST = {
    "draft": "ours",
    "steps": 2,
    "topk": 1,
    "draft_tokens": 3,
    "cuda_graph": "on",
    "nccl": "ring-ll",
    "draft_tp": "shared",
}


@cache
def eagle3_landscape() -> Landscape:
    study = load_study(find_space("eagle3")).resolved(gpus_present=False)
    return calibrated("kimi-k2.5-later", study)


@pytest.fixture(scope="module")
def eagle3() -> Landscape:
    return eagle3_landscape()


def eagle3_sweep(land: Landscape, seed: int, launches: int = 22) -> list[TrialRecord]:
    """Return a sweep at 1 % noise: the baseline, the known settings, then what is asked."""
    study = replace(land.study, seed=seed)
    sampler = make_sampler(study, land.plan)
    rng = np.random.default_rng([seed, 77])
    queue: list[Point] = [{}, *study.known]
    records: list[TrialRecord] = []
    for number in range(launches):
        point = queue.pop(0) if queue else sampler.ask(keys(records))
        assert point is not None
        purpose = Purpose.SEARCH if point else Purpose.BASELINE
        done = land.launch(number, point, noise=0.01, start_s=600.0, rng=rng, purpose=purpose)
        sampler.tell(done)
        records.append(done)
    return records


def chosen(land: Landscape, records: list[TrialRecord]) -> Point | None:
    found = best(standings(records, land.study.objectives), land.study.objectives)
    return None if found is None else dict(found.records[0].trial.point)


def best_is(seed: int) -> tuple[bool, bool]:
    """Return whether a sweep launched the best setting, and whether it chose it."""
    records = eagle3_sweep(eagle3_landscape(), seed)
    launched = any(r.trial.point == BEST for r in records)
    return launched, chosen(eagle3_landscape(), records) == BEST


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_best_of_2960_settings_is_found_in_22_launches_in_99_of_100_seeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        sweeps = list(pool.map(best_is, range(100), chunksize=10))
    assert sum(launched for launched, _ in sweeps) >= 99
    # Three settings are 3.4 % slower. Two launches differ by 1.4 % (sd), so that even of a sweep
    # that launches all four one in forty measures another one as the best.
    assert sum(chose for _, chose in sweeps) >= 97


def test_the_best_of_2960_settings_is_found_in_22_launches(eagle3: Landscape) -> None:
    for seed in range(3):
        assert chosen(eagle3, eagle3_sweep(eagle3, seed)) == BEST


def test_a_sweep_resumed_at_any_launch_goes_on_as_it_would_have(eagle3: Landscape) -> None:
    records = eagle3_sweep(eagle3, 7, launches=19)
    study = replace(eagle3.study, seed=7)
    for prefix in range(3, 19):
        resumed = make_sampler(study, eagle3.plan)
        for told in records[:prefix]:
            resumed.tell(told)
        assert resumed.ask(keys(records[:prefix])) == records[prefix].trial.point


def test_where_nothing_speculates_the_best_is_found_by_an_additive_model() -> None:
    study = small_study(PLAIN)

    def speed(point: Point) -> float:
        factor = {"ring": 1.2, "tree": 1.05}.get(str(point.get("nccl")), 1.0)
        factor *= {4096: 1.15, 2048: 1.1, 16384: 1.0}.get(point.get("chunk"), 0.9)  # type: ignore[arg-type]
        return 50.0 * factor * (1.1 if point.get("mem") == 0.9 else 1.0)

    records, _ = sweep(study, 14, tell=lambda n, p: record(study, n, p, speed=speed))
    winner = max((r for r in records if r.trial.point), key=lambda r: speed(r.trial.point))
    assert winner.trial.point == {"mem": 0.9, "chunk": 4096, "nccl": "ring"}


@pytest.mark.parametrize("kind", [FailureClass.OOM, FailureClass.BUILD_MISSING])
def test_a_family_that_cannot_start_is_not_launched_again_and_again(kind: FailureClass) -> None:
    study = small_study()

    def ring_fails(number: int, point: Point) -> TrialRecord:
        broken = point.get("nccl") == "ring"
        state = TrialState.INFEASIBLE if broken else TrialState.COMPLETE
        return record(study, number, point, state=state, kind=kind)

    records, sampler = sweep(study, 16, tell=ring_fails)
    assert sum(r.trial.point.get("nccl") == "ring" for r in records) <= 4
    assert sampler.stop_reason() is not None
    assert sampler.ask(keys(records)) is not None


def test_a_draft_that_does_not_fit_leaves_the_start_to_the_other() -> None:
    drafts = "draft: {flag: speculative-draft-model-path, values: [/models/bad, /models/good]}"
    study = small_study(SMALL.replace("parameters:", f"parameters:\n  {drafts}"))
    plan = make_plan(study)
    sampler = make_sampler(study, plan)
    records: list[TrialRecord] = []

    def launch(point: Point) -> None:
        fails = point.get("draft") == "/models/bad"
        state = TrialState.INFEASIBLE if fails else TrialState.COMPLETE
        kind = FailureClass.DRAFT_INCOMPATIBLE
        records.append(record(study, len(records), point, state=state, kind=kind))
        sampler.tell(records[-1])

    launch({})
    launch({"draft": "/models/bad", "steps": 2, "topk": 1, "draft_tokens": 3, "nccl": "default"})
    for _ in range(2):
        point = sampler.ask({*keys(records), *ruled_out(plan.settings, rules(records, study))})
        assert point is not None
        launch(point)
    asked = [r.trial.point for r in records[2:]]
    assert {point["draft"] for point in asked} == {"/models/good"}
    # Nobody has launched a long chain or a tree, however many of them are ruled out.
    assert [(point["topk"] == 1, point["steps"] in (3, 4)) for point in asked] == [
        (True, True),
        (False, True),
    ]


def test_a_failure_of_the_machine_says_nothing_of_the_setting() -> None:
    study = small_study()
    plan_sampler = sweep(study, 6)[1]
    records = sweep(study, 6)[0]
    lost = record(study, 6, {**records[-1].trial.point}, state=TrialState.FAILED)
    plan_sampler.tell(lost)
    assert plan_sampler.ask(keys(records)) is not None


def test_a_limit_that_the_fastest_settings_break_is_kept() -> None:
    study = small_study(SMALL + "slo: [single.ttft_p99_ms < 500]\n")

    def ring_is_late(number: int, point: Point) -> TrialRecord:
        late = point.get("nccl") == "ring"
        return record(study, number, point, ttft_ms=2000.0 if late else 100.0)

    records, _ = sweep(study, 20, tell=ring_is_late)
    late = [r for r in records if r.trial.point.get("nccl") == "ring"]
    assert len(late) <= 7
    found = best(standings(records, study.objectives, study.slos), study.objectives)
    assert found is not None
    assert found.records[0].trial.point["nccl"] == "tree"
    assert found.records[0].trial.point["steps"] == 2


def test_a_limit_that_is_never_measured_blocks_nothing() -> None:
    study = small_study(SMALL + "slo: [single.ttft_p99_ms < 500]\n")
    records, _ = sweep(study, 14, tell=lambda n, p: record(study, n, p, ttft_ms=None))
    assert max(speed_of(r.trial.point) for r in records) == 100.0


def test_two_objectives_that_pull_apart_are_both_explored() -> None:
    text = SMALL.replace(
        "objectives: [{maximize: output_tok_s, workload: single}]",
        "objectives: [{maximize: output_tok_s, workload: single},"
        " {maximize: output_tok_s_per_gpu, workload: busy}]",
    )
    study = small_study(text)
    records, _ = sweep(study, 24)
    speeds = [speed_of(r.trial.point) for r in records[1:]]
    everything = [speed_of(p) for p, _ in make_plan(study).settings.values()]
    assert max(speeds) == max(everything)
    assert min(speeds) <= min(everything) + 3


def test_a_stop_is_announced_with_its_chance_once_little_is_left_to_gain() -> None:
    study = small_study()
    records, sampler = sweep(study, 22)
    reason = sampler.stop_reason()
    assert reason is not None
    assert "of 30 settings launched; the chance that another is more than 1 % better is" in reason
    early = make_sampler(study, make_plan(study))
    for told in records[:5]:
        early.tell(told)
    assert early.stop_reason() is None
