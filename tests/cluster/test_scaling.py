"""A cluster from zero: nodes that an autoscaler may add are waited for, others never."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from sweeper.cluster import scaling
from sweeper.cluster.scaling import LIMIT_S, PATIENCE_S, State, bring
from sweeper.records import TrialState
from sweeper.store import Store
from tests.cluster.raylets import ENVIRONMENT
from tests.cluster.running import PATIENCE_S as RUN_PATIENCE_S
from tests.cluster.running import running_sweep
from tests.sweeping import servers_of, wait_for

#: Ray's own name of a fake cluster's head.
HEAD = "f" * 51 + "00000"
#: What a configuration must name although nothing is in it.
EMPTY = ("auth", "docker", "file_mounts")
NO_COMMANDS = (
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
    "cluster_synced_files",
    "rsync_exclude",
    "rsync_filter",
)
NONE, UNKNOWN, IDLE = State(False, ()), State(None, ()), State(True, ())
COMING = State(True, ("gpus",))


class Asked:
    """An autoscaler that says one thing after another, the last again and again."""

    def __init__(self, states: Sequence[State], fits_after_s: float = float("inf")) -> None:
        self.states = list(states)
        self.fits_after_s = fits_after_s
        self.now_s = 0.0
        self.said: list[str] = []
        self.stopped_after_s = float("inf")

    def bring(self) -> str | None:
        return bring(
            [{"GPU": 8}],
            lambda: self.now_s >= self.fits_after_s,
            self.said.append,
            lambda: self.now_s >= self.stopped_after_s,
            state=lambda: self.states.pop(0) if len(self.states) > 1 else self.states[0],
            request=lambda bundles: self.said.append(f"asked for {len(bundles)}"),
            now_s=lambda: self.now_s,
            sleep=self._sleep,
        )

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_without_an_autoscaler_nothing_is_waited_for() -> None:
    asked = Asked([NONE])
    assert asked.bring() == "it has no autoscaler that could add one"
    assert asked.now_s == 0.0
    assert asked.said == []


def test_an_autoscaler_that_has_said_nothing_yet_is_waited_for_a_little() -> None:
    asked = Asked([UNKNOWN])
    assert asked.bring() == "it has no autoscaler that could add one"
    assert 5.0 < asked.now_s < 30.0


def test_a_node_that_comes_late_is_waited_for() -> None:
    asked = Asked([UNKNOWN, IDLE, IDLE, COMING], fits_after_s=900.0)
    assert asked.bring() is None
    assert asked.now_s == pytest.approx(900.0, abs=3.0)
    assert asked.said[0] == "asked for 1"
    assert len(asked.said) == 2


def test_an_autoscaler_that_adds_nothing_is_given_up_after_a_minute() -> None:
    asked = Asked([IDLE])
    why = asked.bring()
    assert why is not None
    assert "adds none" in why
    assert asked.now_s == pytest.approx(PATIENCE_S, abs=3.0)
    assert asked.said[-1] == "asked for 0"


def test_a_node_that_never_comes_is_given_up() -> None:
    asked = Asked([COMING])
    why = asked.bring()
    assert why is not None
    assert "has added none in 30 min" in why
    assert asked.now_s == pytest.approx(LIMIT_S, abs=3.0)


def test_waiting_can_be_interrupted() -> None:
    asked = Asked([COMING])
    asked.stopped_after_s = 5.0
    assert asked.bring() == "interrupted while its autoscaler was waited for"
    assert asked.now_s == pytest.approx(5.0, abs=2.0)


@pytest.mark.parametrize(
    ("report", "state"),
    [
        (None, UNKNOWN),
        ({"active_nodes": {"node_ab": 1}, "pending_nodes": [], "pending_launches": {}}, NONE),
        (
            {
                "active_nodes": {},
                "pending_nodes": [["id", "10.0.0.1", "gpus", "uninitialized"]],
                "pending_launches": {},
                "node_type_mapping": {"id": "head"},
            },
            COMING,
        ),
        (
            {
                "active_nodes": {"headgroup": 1},
                "pending_nodes": [],
                "pending_launches": {"gpus": 2},
            },
            COMING,
        ),
    ],
)
def test_what_version_1_leaves_with_the_head_is_read(
    report: dict[str, object] | None, state: State
) -> None:
    text = json.dumps({"autoscaler_report": report} if report else {})
    assert scaling.state_v1(text.encode()) == state
    assert scaling.state_v1(None) == UNKNOWN


@pytest.fixture(params=["1", "2"])
def from_zero(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A cluster whose head has no GPUs, with Ray's own autoscaler and its fake machines.

    Ray's test class for this ends every Ray of the machine, so the head is started here.
    """
    temp = tempfile.mkdtemp(prefix="sw", dir="/tmp")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = tmp_path / "autoscaler.json"
    config.write_text(json.dumps(autoscaling(address)))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment |= {
        **ENVIRONMENT,
        "RAY_TMPDIR": temp,
        "RAY_FAKE_CLUSTER": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    }
    if request.param == "2":
        environment |= {
            "RAY_enable_autoscaler_v2": "1",
            "RAY_CLOUD_INSTANCE_ID": HEAD,
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD,
        }
    head = subprocess.Popen(
        [
            str(Path(sys.executable).parent / "ray"),
            *("start", "--head", "--block", f"--autoscaling-config={config}"),
            *(f"--port={address.rpartition(':')[2]}", "--node-ip-address=127.0.0.1"),
            *("--num-cpus=1", "--num-gpus=0", "--object-store-memory=83886080"),
            "--include-dashboard=false",
        ],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(accepts(address), "the head", RUN_PATIENCE_S)
        yield address
    finally:
        for pid in below(temp):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        head.kill()
        head.wait()
        shutil.rmtree(temp, ignore_errors=True)


def accepts(address: str) -> Callable[[], bool]:
    host, _, port = address.partition(":")

    def look() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    return look


def below(temp: str) -> list[int]:
    """Return the processes of the Ray whose sessions are in this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environ = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"RAY_TMPDIR={temp}".encode() in environ and int(path.name) != os.getpid():
            found.append(int(path.name))
    return found


def autoscaling(address: str) -> dict[str, object]:
    """Return what an autoscaler needs that may add one node of eight GPUs."""
    return {
        "cluster_name": "fake",
        "max_workers": 1,
        "idle_timeout_minutes": 10,
        "upscaling_speed": 1.0,
        # As an external one: the file that Ray's own name for it needs is in no package.
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "gcs_address": address,
            "launch_multiple": True,
            "head_node_id": HEAD,
        },
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
            "gpus": {
                "resources": {"CPU": 1, "GPU": 8, "object_store_memory": 83886080},
                "node_config": {},
                "min_workers": 0,
                "max_workers": 1,
            },
        },
        "head_node_type": "ray.head.default",
        **{key: {} for key in EMPTY},
        **{key: [] for key in NO_COMMANDS},
        "file_mounts_sync_continuously": False,
    }


@pytest.mark.slow
def test_a_node_is_asked_for_and_waited_for(from_zero: str, tmp_path: Path) -> None:
    more = ("--address", from_zero)
    short = {"scale": 1000, "tokens": 20, "repeats": 1, "launches": 2}
    with running_sweep(tmp_path, "zero", *more, env=ENVIRONMENT, **short) as sweep:
        sweep.until("no node has room; its autoscaler was asked for one")
        assert sweep.process.wait(timeout=RUN_PATIENCE_S) == 0, "".join(sweep.lines)
    records = Store(tmp_path / "runs" / "zero").records()
    assert [r.state for r in records] == [TrialState.COMPLETE] * 2
    wait_for(lambda: not servers_of("zero"), "the servers to be gone", 10.0)
