"""Groups of real processes: what ranks agree on, what is gathered, what a split draft computes."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.real.installed import CHECKOUT, python

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("rank_program.py")


def ranks(kind: str, size: int, folder: Path, version: str) -> list[dict[str, Any]]:
    """Run the cases of a kind on a group of processes and return what each rank found."""
    words = ["nice", "-n", "10", python(version), "-W", "ignore", str(PROGRAM), kind]
    started = [
        subprocess.Popen(
            [*words, str(rank), str(size), str(folder)],
            env={"PATH": "/usr/bin:/bin", "SWEEPER_TEST_PATH": str(CHECKOUT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    found = []
    try:
        for process in started:
            out, err = process.communicate(timeout=500)
            assert process.returncode == 0, err[-2000:]
            found.append(json.loads(out.splitlines()[-1]))
    finally:
        for process in started:
            process.kill()
            process.wait()
    return found


@pytest.fixture(scope="module", params=[2, 4], ids=["two", "four"])
def agreed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    return ranks("agreement", request.param, tmp_path_factory.mktemp("ranks"), "0.5.17")


@pytest.fixture(scope="module", params=["0.5.15", "0.5.17"])
def split(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    return ranks("sglang", 4, tmp_path_factory.mktemp("ranks"), request.param)


def test_all_ranks_take_the_draft_of_rank_0(agreed: list[dict[str, Any]]) -> None:
    for found in agreed:
        assert found["rank_0_decides"] == {"same": [True] * 5, "rounds": 5, "corrected": 5}


def test_a_draft_of_one_step_has_no_parents(agreed: list[dict[str, Any]]) -> None:
    for found in agreed:
        assert found["one_step"] == {"tokens": [[0], [1]], "parents": [2, 0]}


def test_a_tree_is_taken_whole(agreed: list[dict[str, Any]]) -> None:
    first, *others = (found["tree"] for found in agreed)
    assert all(other == first for other in others)
    assert first["parents"][0][0] == -1


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("strict", "drafted other tokens than rank 0"),
        ("other_lengths", "in round 2 the ranks [1] have other requests"),
        ("other_tokens", "in round 1 the ranks [1] have other requests"),
        ("other_batch", "in round 1 the ranks [1] have other requests"),
    ],
)
def test_a_rank_that_disagrees_is_an_error_on_all(
    case: str, said: str, agreed: list[dict[str, Any]]
) -> None:
    for found in agreed:
        assert found[case]["error"] == "Disagreement"
        assert said in found[case]["message"]


@pytest.mark.parametrize("case", ["too_many", "wider"])
def test_what_the_buffers_do_not_hold_is_an_error(case: str, agreed: list[dict[str, Any]]) -> None:
    assert {found[case]["error"] for found in agreed} == {"ValueError"}


def test_the_drafts_groups_are_neighbours(split: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(split):
        pair = rank // 2 * 2
        assert found["groups"] == {
            "1": {"ranks": [rank], "inside": [1, 1, 0]},
            "2": {"ranks": [pair, pair + 1], "inside": [2, 2, rank % 2]},
        }


def test_the_gathered_embedding_is_the_whole_one(split: list[dict[str, Any]]) -> None:
    for found in split:
        assert found["tables"] == {"equal": [True] * 4, "rows": [128, 256]}


def test_a_split_draft_computes_what_the_shared_one_does(split: list[dict[str, Any]]) -> None:
    for found in (rank["model"] for rank in split):
        assert found["sizes"] == {"1": [1], "2": [2], "4": [4]}
        assert found["spread"] > 0.1
        assert max(found["close"].values()) < 1e-4 * found["spread"]
        first, *others = found["tokens"].values()
        assert all(other == first for other in others)


def test_a_head_is_taken_whole_and_only_where_it_fits(split: list[dict[str, Any]]) -> None:
    for found in split:
        assert found["head"]["equal"] == [True] * 4
        assert "cannot be had from" in found["head"]["error"]
