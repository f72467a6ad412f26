"""The files of infra/, each checked by its own tool or schema."""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from sweeper.cluster.metrics import COUNTERS, GAUGES

ROOT = Path(__file__).parent.parent.parent
INFRA = ROOT / "infra"
SCHEMA = ROOT / "tests" / "data" / "kuberay.schema.json"
#: A package of the checkout for a Ray job; the code is about a third of it.
MOST_PACKAGE_BYTES = 3_000_000
MARK = b"this must not be sent\n"


def needs(program: str) -> str:
    """Return a program's path, or skip."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path


def check(*command: str) -> str:
    """Run a checker and return what it said; fail with that if it complains."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((INFRA / "kubernetes" / name).read_text(encoding="utf-8")))


def test_the_cluster_file_is_one_that_ray_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ray looks at the environment when its autoscaler is imported.
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.autoscaler._private.util import prepare_config, validate_config

    given = yaml.safe_load((INFRA / "cluster.yaml").read_text(encoding="utf-8"))
    prepared = prepare_config(copy.deepcopy(given))
    validate_config(prepared)
    assert prepared["max_workers"] == len(given["provider"]["worker_ips"])
    starts = given["head_start_ray_commands"] + given["worker_start_ray_commands"]
    for command in (c for c in starts if " start" in c):
        assert "RAY_AUTH_MODE=token" in command
    assert "--dashboard-host=127.0.0.1" in given["head_start_ray_commands"][-1]


@pytest.mark.parametrize("name", ["raycluster.yaml", "rayjob.yaml"])
def test_kubernetes_files_use_fields_that_exist_and_what_a_sweep_needs(name: str) -> None:
    document = documents(name)[0]
    jsonschema.validate(document, json.loads(SCHEMA.read_text(encoding="utf-8")))
    spec = document["spec"].get("rayClusterSpec", document["spec"])
    assert spec["authOptions"] == {"mode": "token"}
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    for group in groups:
        pod = group["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in pod["containers"]:
            mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
            assert mounts.keys() == volumes.keys()
            assert mounts["runs"]["mountPath"] == "/runs"
    (worker,) = spec["workerGroupSpecs"]
    (container,) = worker["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    paths = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert paths["models"] == {"name": "models", "mountPath": "/models", "readOnly": True}
    assert paths["shm"]["mountPath"] == "/dev/shm"
    volumes = {volume["name"]: volume for volume in worker["template"]["spec"]["volumes"]}
    assert volumes["shm"]["emptyDir"]["medium"] == "Memory"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "workerGroupSpecs", 0, "groupNam"), "gpu"),
        (("spec", "rayVersion"), 2.6),
        (("spec", "headGroupSpec", "rayStartParams", "num-gpus"), 0),
        (("spec", "headGroupSpec", "template", "spec", "hostNetwork"), True),
    ],
)
def test_the_schema_refuses_what_kuberay_would(path: tuple[str | int, ...], value: object) -> None:
    document = documents("raycluster.yaml")[0]
    at: Any = document
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, json.loads(SCHEMA.read_text(encoding="utf-8")))


def test_the_jobs_cluster_is_the_cluster_with_the_space_file() -> None:
    (job,) = documents("rayjob.yaml")
    spec = copy.deepcopy(job["spec"]["rayClusterSpec"])
    head = spec["headGroupSpec"]["template"]["spec"]
    head["volumes"] = [v for v in head["volumes"] if v["name"] != "space"]
    mounts = head["containers"][0]["volumeMounts"]
    head["containers"][0]["volumeMounts"] = [m for m in mounts if m["name"] != "space"]
    assert spec == documents("raycluster.yaml")[0]["spec"]


def test_the_slurm_script_is_sound() -> None:
    script = INFRA / "slurm.sh"
    assert os.access(script, os.X_OK)
    check("bash", "-n", str(script))
    check(needs("shellcheck"), str(script))


def test_the_systemd_unit_is_sound(tmp_path: Path) -> None:
    text = (INFRA / "sweeper@.service").read_text(encoding="utf-8")
    assert "/opt/sweeper/bin/python" in text
    unit = tmp_path / "sweeper@.service"
    unit.write_text(text.replace("/opt/sweeper/bin/python", sys.executable), encoding="utf-8")
    said = check(needs("systemd-analyze"), "verify", str(tmp_path / "sweeper@eagle3.service"))
    assert "sweeper@" not in said


def test_the_prometheus_configuration_is_sound() -> None:
    assert "SUCCESS" in check(needs("promtool"), "check", "config", str(INFRA / "prometheus.yml"))


def exported_names() -> set[str]:
    """Return all metrics of a sweep as Prometheus sees them."""
    return {f"ray_{name}" for name in GAUGES} | {f"ray_{name}_total" for name in COUNTERS}


def test_the_grafana_dashboard_draws_all_metrics_and_no_others() -> None:
    board = json.loads((INFRA / "grafana" / "dashboards" / "sweeper.json").read_text("utf-8"))
    drawn: set[str] = set()
    identities = [panel["id"] for panel in board["panels"]]
    assert len(identities) == len(set(identities))
    for panel in board["panels"]:
        for target in panel["targets"]:
            drawn |= set(re.findall(r"ray_sweeper_\w+", target["expr"]))
            assert "{{study}}" in target["legendFormat"]
            assert "{{engine}}" in target["legendFormat"], "it must say what is simulated"
    assert drawn == exported_names()


def test_grafana_finds_the_source_and_the_dashboard_where_the_docs_put_them() -> None:
    provisioning = INFRA / "grafana" / "provisioning"
    sources = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text("utf-8"))
    (source,) = sources["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://127.0.0.1:9090")
    boards = yaml.safe_load((provisioning / "dashboards" / "sweeper.yaml").read_text("utf-8"))
    (provider,) = boards["providers"]
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    assert provider["options"]["path"] in page


def patterns(name: str) -> set[str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return {line.lstrip("/") for line in lines if line and not line.startswith("#")}


def test_images_and_jobs_leave_out_the_same() -> None:
    assert patterns(".rayignore") == patterns(".dockerignore")


def test_a_jobs_package_has_the_code_and_neither_results_nor_history(tmp_path: Path) -> None:
    from ray._private.runtime_env.packaging import create_package

    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("sweeper", "search_spaces", "infra"):
        shutil.copytree(ROOT / name, checkout / name)
    for name in (".rayignore", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, checkout)
    for name in ("runs/eagle3/trials", ".git/objects", ".venv/lib", "sweeper/__pycache__"):
        folder = checkout / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "big").write_bytes(MARK + os.urandom(2 * MOST_PACKAGE_BYTES))
    package = tmp_path / "package.zip"
    create_package(str(checkout), package, include_gitignore=True)
    assert package.stat().st_size < MOST_PACKAGE_BYTES
    with zipfile.ZipFile(package) as archive:
        names = archive.namelist()
        assert "sweeper/search.py" in names
        assert "search_spaces/eagle3.yaml" in names
        assert not [n for n in names if re.match(r"(runs|\.git|\.venv)/", n) or "pycache" in n]


@pytest.mark.parametrize("name", ["Containerfile", "Containerfile.driver"])
def test_an_image_is_built_from_files_that_make_the_whole_package(
    name: str, tmp_path: Path
) -> None:
    text = (INFRA / name).read_text(encoding="utf-8")
    for words in re.findall(r"^COPY (.+)$", text, re.MULTILINE):
        *sources, target = words.split()
        assert target.startswith("/src/")
        for source in sources:
            to = tmp_path / target.lstrip("/")
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, to)
            else:
                to.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, to)
    build = "from hatchling.build import build_wheel; print(build_wheel('.'))"
    done = subprocess.run(
        [sys.executable, "-c", build],
        cwd=tmp_path / "src",
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / "src" / done.stdout.split()[-1]) as wheel:
        names = wheel.namelist()
    assert "sweeper/search.py" in names
    assert "sweeper/search_spaces/eagle3.yaml" in names
    assert "RAY_AUTH_MODE=token" in text
