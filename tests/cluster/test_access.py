"""Which Ray a sweep goes to, and what it says about who may reach it."""

import json
import os
import stat
from pathlib import Path

import pytest

from sweeper.cluster.access import (
    check_results_stay,
    choose_address,
    dashboard_line,
    job_address,
    prepare_token,
)
from sweeper.errors import UserError

JOB = {
    "RAY_ADDRESS": "10.0.0.1:6379",
    "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"metadata": {"job_submission_id": "raysubmit_1"}}),
}


def test_without_an_address_a_sweep_stays_here_whatever_the_environment_says() -> None:
    assert choose_address(None, {}) is None
    assert choose_address(None, {"RAY_ADDRESS": "10.0.0.1:6379"}) is None


def test_a_job_joins_the_cluster_that_runs_it() -> None:
    assert choose_address(None, JOB) == "10.0.0.1:6379"
    assert choose_address("10.0.0.2:6379", JOB) == "10.0.0.2:6379"


@pytest.mark.parametrize("config", ["", "{", "[]", "{}", '{"metadata": null}', '{"metadata": {}}'])
def test_a_driver_that_no_job_manager_started_is_no_job(config: str) -> None:
    assert job_address({**JOB, "RAY_JOB_CONFIG_JSON_ENV_VAR": config}) is None


@pytest.mark.parametrize("address", ["ray://head:10001", "http://head:8265"])
def test_an_address_that_the_driver_cannot_own_gpus_through_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="ray job submit"):
        choose_address(address, {})


def test_results_below_a_jobs_working_directory_are_refused() -> None:
    inside = Path("/tmp/ray/session_x/runtime_resources/working_dir_files/_ray_pkg_1/runs")
    with pytest.raises(UserError, match="--runs"):
        check_results_stay(inside, JOB)
    check_results_stay(inside, {})
    check_results_stay(Path("/shared/runs"), JOB)


def test_a_missing_token_is_made_for_its_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    before = os.umask(0)
    try:
        prepare_token({})
        path = tmp_path / ".ray" / "auth_token"
        token = path.read_text(encoding="utf-8")
        prepare_token({})
    finally:
        os.umask(before)
    assert len(token) == 64
    assert path.read_text(encoding="utf-8") == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_without_a_home_the_token_gets_a_folder_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").write_text("not a folder")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environ: dict[str, str] = {"RAY_AUTH_MODE": "token"}
    prepare_token(environ)
    path = Path(environ["RAY_AUTH_TOKEN_PATH"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    line = dashboard_line("http://127.0.0.1:8265", environ)
    assert str(path) in line
    assert path.read_text(encoding="utf-8") not in line


@pytest.mark.parametrize(
    "environ",
    [
        {"RAY_AUTH_MODE": "disabled"},
        {"RAY_AUTH_TOKEN": "given"},
        {"RAY_AUTH_TOKEN_PATH": "/somewhere"},
    ],
)
def test_a_token_that_is_given_or_not_wanted_is_not_made(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    before = dict(environ)
    prepare_token(environ)
    assert environ == before
    assert list(tmp_path.iterdir()) == []


def test_the_line_about_the_dashboard_never_has_the_token() -> None:
    environ = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "4f1d"}
    assert "4f1d" not in dashboard_line("http://127.0.0.1:8265", environ)
    assert dashboard_line("http://127.0.0.1:8265", {}) == "Ray dashboard: http://127.0.0.1:8265"
