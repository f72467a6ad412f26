"""What people and programs see of a sweep on Ray while it runs, and what nobody else may."""

import asyncio
import base64
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from sweeper.cluster.metrics import COUNTERS, GAUGES
from sweeper.store import Store
from tests.cluster.running import PATIENCE_S, RunningSweep, running_sweep
from tests.report.browser import find_browser, open_tab
from tests.sweeping import wait_for

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSweep]:
    """A sweep in an environment that invites mistakes: a taken port, somebody else's address."""
    folder = tmp_path_factory.mktemp("dashboard")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 8265))
            taken.listen()
        except OSError:
            pass  # another Ray has it; that is as good
        env = {"RAY_ADDRESS": "10.255.255.1:6379"}
        with running_sweep(folder, "seen", env=env, scale=15) as running:
            running.until(r"Ray dashboard: ")
            running.until(r"^\[2/60\b")
            yield running


@pytest.fixture(scope="module")
def url(sweep: RunningSweep) -> str:
    return sweep.until(r"Ray dashboard: (http://\S+)").group(1)


@pytest.fixture(scope="module")
def token(sweep: RunningSweep) -> str:
    """The token, found as the first lines say."""
    path = sweep.until(r"\(asks for a token: cat (\S+)\)").group(1)
    assert Path(path).is_relative_to(sweep.home)
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    return Path(path).read_text(encoding="utf-8").strip()


def test_an_address_of_the_environment_sends_no_sweep_away(sweep: RunningSweep) -> None:
    sweep.until("RAY_ADDRESS is not followed; --address joins a cluster")
    assert sweep.session.is_dir()


def test_a_taken_port_gives_the_dashboard_another_one(sweep: RunningSweep, url: str) -> None:
    assert url != "http://127.0.0.1:8265"


def test_the_dashboard_lets_nobody_in_without_the_token(url: str, token: str) -> None:
    assert requests.get(f"{url}/api/v0/actors", timeout=30).status_code == 401
    bearer = {"Authorization": f"Bearer {token}"}
    assert requests.get(f"{url}/api/v0/actors", headers=bearer, timeout=30).status_code == 200


def test_actors_and_tasks_say_study_and_slot(url: str, token: str) -> None:
    bearer = {"Authorization": f"Bearer {token}"}
    answer = requests.get(f"{url}/api/v0/actors", headers=bearer, timeout=30).json()
    (actor,) = answer["data"]["result"]["result"]
    assert actor["name"].startswith("sweeper seen slot-0 ")
    names: set[str] = set()

    def named() -> bool:
        answer = requests.get(f"{url}/api/v0/tasks", headers=bearer, timeout=30).json()
        names.update(task["name"] for task in answer["data"]["result"]["result"])
        return any(re.fullmatch(r"trial \d+ on slot-0", name) for name in names)

    wait_for(named, "a task that says trial and slot", PATIENCE_S)


def test_every_listener_is_on_loopback(sweep: RunningSweep) -> None:
    ss = shutil.which("ss")
    if ss is None:
        pytest.skip("ss is not installed")
    listeners: list[str] = []

    def seen() -> bool:
        out = subprocess.run([ss, "-Hltnp"], capture_output=True, text=True, check=True).stdout
        ours = sweep.pids()
        listeners[:] = [
            line.split()[3]
            for line in out.splitlines()
            if ours & {int(pid) for pid in re.findall(r"pid=(\d+)", line)}
        ]
        return len(listeners) > 5

    wait_for(seen, "Ray's listeners", PATIENCE_S)
    loopback = re.compile(r"(127\.\d+\.\d+\.\d+|\[::1\]|\[::ffff:127\.\d+\.\d+\.\d+\]):\d+$")
    assert [address for address in listeners if not loopback.match(address)] == []


def test_neither_what_is_printed_nor_what_is_stored_has_the_token(
    sweep: RunningSweep, token: str
) -> None:
    assert len(token) > 20
    assert token not in "".join(sweep.lines)
    files = [path for path in (sweep.folder / "runs").rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert token.encode() not in path.read_bytes(), path


def scrape(sweep: RunningSweep) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return the sweep's metrics from the node's own port: name -> labels and values."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    discovery = sweep.temp / "ray" / "prom_metrics_service_discovery.json"
    if not discovery.exists():
        return found
    for group in json.loads(discovery.read_text(encoding="utf-8")):
        for target in group["targets"]:
            text = requests.get(f"http://{target}/metrics", timeout=30).text
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.name.startswith("ray_sweeper_"):
                        found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_a_scrape_sees_every_number_of_the_sweep(sweep: RunningSweep) -> None:
    wanted = {f"ray_{name}" for name in GAUGES} | {f"ray_{name}_total" for name in COUNTERS}
    seen: dict[str, list[tuple[dict[str, str], float]]] = {}

    def all_seen() -> bool:
        seen.update(scrape(sweep))
        return seen.keys() >= wanted

    try:
        wait_for(all_seen, "all metrics", PATIENCE_S)
    finally:
        assert wanted - seen.keys() == set()
    for name, samples in seen.items():
        for labels, _ in samples:
            assert (labels["study"], labels["engine"]) == ("seen", "simulated"), name
    states = {labels["state"]: value for labels, value in seen["ray_sweeper_state"]}
    assert states == {"searching": 1, "confirming": 0, "stopping": 0, "ended": 0}
    (slot,) = seen["ray_sweeper_slot_busy"]
    assert slot[0]["slot"] == "slot-0"
    records = Store(sweep.folder / "runs" / "seen").records()
    speeds = {m.output_tok_s for r in records for m in r.measurements}
    ((_, best),) = seen["ray_sweeper_best_output_tok_s"]
    assert any(speed == pytest.approx(best) for speed in speeds)
    # One series an outcome; all trials are complete unless the machine is very busy.
    launches = sum(value for _, value in seen["ray_sweeper_launches_total"])
    assert 1 <= launches <= len(records)
    ((_, length),) = seen["ray_sweeper_slot_accept_length"]
    assert 1.0 <= length < 6.0


def test_prometheus_scrapes_it_and_the_dashboards_queries_find_it(
    sweep: RunningSweep, tmp_path: Path
) -> None:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed")
    text = (ROOT / "infra" / "prometheus.yml").read_text(encoding="utf-8")
    assert "/tmp/ray/" in text
    config = tmp_path / "prometheus.yml"
    config.write_text(text.replace("/tmp/ray/", f"{sweep.temp}/ray/").replace("10s", "1s"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    board = json.loads((ROOT / "infra/grafana/dashboards/sweeper.json").read_text("utf-8"))
    queries = {
        target["expr"].replace("$study", "seen")
        for panel in board["panels"]
        for target in panel["targets"]
    }
    answered: set[str] = set()

    def ask(query: str) -> list[Any]:
        api = f"http://127.0.0.1:{port}/api/v1/query?query={quote(query)}"
        answer = requests.get(api, timeout=30).json()
        assert answer["status"] == "success", answer
        result: list[Any] = answer["data"]["result"]
        return result

    def all_answered() -> bool:
        time.sleep(0.5)
        try:
            answered.update(query for query in queries - answered if ask(query))
        except requests.ConnectionError:
            return False
        return answered == queries

    try:
        wait_for(all_answered, "an answer to each query", PATIENCE_S)
        assert ask('up{job="ray"} == 1')
    finally:
        assert queries - answered == set()
        process.terminate()
        process.wait(timeout=30)


def test_a_person_with_the_token_sees_the_slot_in_a_browser(
    sweep: RunningSweep, url: str, token: str, tmp_path: Path
) -> None:
    """Keep the documents' picture too where SWEEPER_PICTURES names their folder."""
    program = find_browser()
    if program is None:
        pytest.skip("chromium is not installed")
    submit = "[...document.querySelectorAll('button')].find(b => /^submit$/i.test(b.innerText))"

    async def look() -> bytes:
        async with open_tab(program, tmp_path / "profile", width=1300, height=620) as tab:
            await tab.call("Page.navigate", url=url)
            await tab.until("!!document.querySelector('input[placeholder*=token]')")
            await tab.ask("document.querySelector('input[placeholder*=token]').focus()")
            await tab.call("Input.insertText", text=token)
            await tab.until(f"{submit}?.disabled === false")
            await tab.ask(f"{submit}.click()")
            await tab.until("!document.querySelector('input[placeholder*=token]')")
            await tab.call("Page.navigate", url=f"{url}/#/actors")
            await tab.until("document.body.innerText.includes('sweeper seen slot-0')")
            shot = await tab.call("Page.captureScreenshot", format="png")
            return base64.b64decode(shot["data"])

    picture = asyncio.run(look())
    assert len(picture) > 10_000
    folder = os.environ.get("SWEEPER_PICTURES")
    if folder:
        (Path(folder) / "ray-dashboard.png").write_bytes(picture)


def test_the_picture_of_the_documents_is_small() -> None:
    assert (ROOT / "docs" / "images" / "ray-dashboard.png").stat().st_size < 300_000
