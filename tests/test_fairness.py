import json
from dataclasses import replace

import pytest

from sweeper.config import parse_study
from sweeper.judging.fairness import unfair
from sweeper.judging.verdict import judge
from sweeper.records import FlagValue, Purpose, ServerFacts, TrialRecord
from sweeper.study import Study
from tests.build import make_launch, make_record
from tests.test_config import GOOD


@pytest.fixture
def study() -> Study:
    text = GOOD.replace("slo: [single.ttft_p99_ms < 500]\n", "")
    return parse_study(text, "space.yaml").resolved(gpus_present=False)


def ran(number: int, flags: dict[str, FlagValue | None], **changes: object) -> TrialRecord:
    record = make_record(number, 90.0 + number, **changes)  # type: ignore[arg-type]
    facts = ServerFacts(version="0.5.23", flags=flags, rewritten={}, simulated=True)
    return replace(record, server=facts)


def test_a_cap_that_only_speculation_brings_is_found_and_said(study: Study) -> None:
    base = ran(0, {"max-running-requests": 2048}, purpose=Purpose.BASELINE, launch=make_launch())
    records = [base, *(ran(n, {"max-running-requests": 48}) for n in (1, 2))]
    (found,) = unfair(records, study)
    assert found.splits_baseline
    assert found.trials == {2048: (0,), 48: (1, 2)}
    assert any("--max-running-requests is not swept" in n for n in judge(records, study).notes)


@pytest.mark.parametrize(
    "flag",
    [
        "speculative-num-steps",
        "disable-cuda-graph",
        "cuda-graph-max-bs-decode",
        "port",
        "dist-init-addr",
    ],
)
def test_what_is_swept_or_follows_from_it_is_fair(study: Study, flag: str) -> None:
    assert not unfair([ran(0, {flag: 1}), ran(1, {flag: 2})], study)


def graphs(sizes: list[int], prefill: int, backend: str = "full") -> str:
    """Return a server's graphs as 0.5.17 and 0.5.23 tell them."""
    decode = {"backend": backend, "bs": sizes, "max_bs": sizes[-1]}
    return json.dumps({"decode": decode, "prefill": {"backend": "disabled", "max_bs": prefill}})


SPECULATING, PLAIN = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16], [1, 2, 4, 8, 12, 16]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (graphs(SPECULATING, 8192), None),
        (graphs(PLAIN, 2048), None),
        (graphs([1, 2, 4, 8], 8192), "decode.max_bs 8"),
        (graphs(PLAIN, 8192, "disabled"), "decode.backend disabled"),
        ("{", "{"),
        ("[]", "[]"),
        ('{"decode": 1}', '{"decode": 1}'),
    ],
)
def test_of_graphs_what_speculation_and_chunks_bring_is_fair(
    study: Study, other: str, said: str | None
) -> None:
    kept = tuple(p for p in study.space.parameters if p.name != "graph")
    study = replace(study, space=replace(study.space, parameters=kept))
    flag = "cuda-graph-config"
    found = unfair([ran(0, {flag: graphs(PLAIN, 8192)}), ran(1, {flag: other})], study)
    assert [said in str(f) for f in found if said] == ([True] if said else [])
    assert bool(found) is (said is not None)


def test_a_flag_that_a_server_does_not_tell_is_not_compared(study: Study) -> None:
    assert not unfair([ran(0, {"page-size": 1}), ran(1, {})], study)
