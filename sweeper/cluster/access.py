"""Which Ray a sweep goes to, and who may reach it. No Ray is imported here.

A sweep stays on this machine unless it is told otherwise: by an address, or by being run as a Ray
job. RAY_ADDRESS alone sends nothing away, since shells and containers have it set for other ends.
"""

import json
import os
import secrets
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from sweeper.errors import UserError

#: Set by Ray's job manager for the programs that it starts, and only for these.
_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_JOB_ID = "job_submission_id"
#: Below the folder of each session Ray unpacks working directories, and deletes them later.
_UNPACKED = "runtime_resources"


def job_address(environ: Mapping[str, str]) -> str | None:
    """Return the cluster that runs this process as a submitted job; None if it is no job."""
    try:
        config = json.loads(environ.get(_JOB_CONFIG, "{}"))
    except ValueError:
        return None
    metadata = config.get("metadata") if isinstance(config, dict) else None
    if not isinstance(metadata, dict) or _JOB_ID not in metadata:
        return None
    return environ.get("RAY_ADDRESS") or "auto"


def choose_address(given: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the cluster to join, or None for Ray on this machine.

    Args:
        given: What the person gave; "auto" is RAY_ADDRESS, or what runs on this machine.
        environ: The process's environment.

    Raises:
        UserError: It is an address that only Ray's client or its jobs can use.
    """
    if given is None:
        return job_address(environ)
    if "://" in given:
        raise UserError(
            f"--address {given}: the driver has to run on a node of the cluster, with HOST:PORT of "
            "its head or 'auto'; from elsewhere use `ray job submit` (docs/deploy.md)"
        )
    return given


def check_results_stay(runs: Path, environ: Mapping[str, str]) -> None:
    """Refuse a folder for results that Ray deletes when the job is over.

    Raises:
        UserError: It is below a job's unpacked working directory.
    """
    if job_address(environ) is not None and _UNPACKED in runs.resolve().parts:
        raise UserError(
            f"results in {runs} would go with the job: Ray deletes its working directory; "
            "give --runs a folder that all nodes share and that stays"
        )


def prepare_token(environ: MutableMapping[str, str]) -> None:
    """Make Ray's token readable by its owner only, where Ray would make it readable by all.

    Ray itself writes a missing token with the rights that the umask leaves. Where the home folder
    cannot be written, the token gets a folder of its own.
    """
    if environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return
    if environ.get("RAY_AUTH_TOKEN") or environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    try:
        path = _default_token()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_once(path)
    except (OSError, RuntimeError):  # RuntimeError: this user has no home
        path = Path(tempfile.mkdtemp(prefix="sweeper-ray-")) / "auth_token"
        _write_once(path)
        environ["RAY_AUTH_TOKEN_PATH"] = str(path)


def dashboard_line(url: str, environ: Mapping[str, str]) -> str:
    """Return a line that says where the dashboard is and how to be let in; never the token."""
    if environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return f"Ray dashboard: {url}"
    if environ.get("RAY_AUTH_TOKEN"):
        how = "RAY_AUTH_TOKEN has it"
    else:
        how = f"cat {environ.get('RAY_AUTH_TOKEN_PATH') or _default_token()}"
    return f"Ray dashboard: {url} (asks for a token: {how})"


def _default_token() -> Path:
    return Path.home() / ".ray" / "auth_token"


def _write_once(path: Path) -> None:
    """Write a token where there is none; two drivers that start at once agree on one."""
    if path.exists() and path.stat().st_size:
        return
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    try:
        os.link(new, path)
    except FileExistsError:
        if not path.stat().st_size:
            new.replace(path)
    finally:
        new.unlink(missing_ok=True)
