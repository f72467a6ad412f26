"""What a server's environment is made of."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sweeper.serving.environment import CACHES, INHERITED, child_environment

NAMES = st.text(
    st.characters(codec="ascii", categories=("Lu", "Nd"), include_characters="_"), min_size=1
)
VARIABLES = st.dictionaries(NAMES, st.text(max_size=5))


@given(machine=VARIABLES, engine=VARIABLES, gpus=st.lists(st.integers(0, 7), unique=True))
def test_only_what_is_listed_comes_from_the_machine(
    machine: dict[str, str], engine: dict[str, str], gpus: list[int]
) -> None:
    ids = tuple(gpus)
    ray = {"RAY_ADDRESS": "x", "CUDA_VISIBLE_DEVICES": "9", "NCCL_ALGO": "Ring", "LD_PRELOAD": "x"}
    made = child_environment(machine | ray, engine=engine, gpu_ids=ids, cpus=8)
    fixed = {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONUNBUFFERED"}
    for name in set(made) - set(engine) - fixed:
        assert any(name == one or name.startswith(one) for one in INHERITED)
        assert made[name] == machine[name]


@given(machine=VARIABLES, engine=VARIABLES, gpus=st.lists(st.integers(0, 7), unique=True))
def test_the_engine_wins_over_the_machine_but_not_over_the_place(
    machine: dict[str, str], engine: dict[str, str], gpus: list[int]
) -> None:
    asked = engine | {"OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "5", "PATH": "/engine"}
    made = child_environment(machine, engine=asked, gpu_ids=tuple(gpus), cpus=8)
    assert made["CUDA_VISIBLE_DEVICES"] == ",".join(map(str, gpus))
    assert made["OMP_NUM_THREADS"] == "3"
    assert made["PATH"] == "/engine"


def test_ranks_share_the_cores_and_one_cache() -> None:
    made = child_environment(
        {}, engine={}, gpu_ids=(0, 1, 2, 3), cpus=10, cache_dir=Path("/cache")
    )
    assert made["OMP_NUM_THREADS"] == "2"
    assert made["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert {name: made[name] for name in CACHES} == {
        name: f"/cache/{below}" for name, below in CACHES.items()
    }
    assert len(set(CACHES.values())) == len(CACHES)


def test_a_server_without_gpus_sees_none() -> None:
    made = child_environment({"CUDA_VISIBLE_DEVICES": "3"}, engine={}, gpu_ids=(), cpus=1)
    assert made["CUDA_VISIBLE_DEVICES"] == ""
