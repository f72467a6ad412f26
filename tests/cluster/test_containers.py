"""Nodes that are containers of one host: they share its name, not its processes."""

from pathlib import Path

import pytest

from sweeper.records import TrialState
from sweeper.store import Store
from tests.cluster.raylets import ENVIRONMENT, raylets
from tests.cluster.running import PATIENCE_S, running_sweep
from tests.cluster.test_driver_ends import UNSHARE, can_unshare

pytestmark = pytest.mark.slow


@pytest.mark.skipif(not can_unshare(), reason="no new process namespace can be made here")
def test_a_driver_that_a_node_of_its_hosts_name_cannot_see_is_not_taken_for_dead(
    tmp_path: Path,
) -> None:
    with raylets(before=UNSHARE) as cluster:
        cluster.add(8)
        more = ("--address", cluster.address)
        short = {"scale": 1000, "tokens": 20, "repeats": 1, "launches": 2}
        with running_sweep(tmp_path, "contained", *more, env=ENVIRONMENT, **short) as sweep:
            assert sweep.process.wait(timeout=PATIENCE_S) == 0
    records = Store(tmp_path / "runs" / "contained").records()
    assert [r.state for r in records] == [TrialState.COMPLETE] * 2, "".join(sweep.lines)
