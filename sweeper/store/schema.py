"""The Arrow schemas of the three tables, explicit and versioned, and record <-> row.

A row never changes after it is written. Columns may be added with a new version; a reader gives
null for a column that an older file lacks. What has no fixed shape (points, flags, variables,
phases) is JSON text in a column of its own, so that no column ever vanishes or changes its type.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from sweeper import __version__
from sweeper.errors import Failure, FailureClass, Stage
from sweeper.records import (
    HostFacts,
    Launch,
    Measurement,
    Purpose,
    RequestTiming,
    ServerFacts,
    Trial,
    TrialRecord,
    TrialState,
)
from sweeper.redaction import HIDDEN, is_secret_name, redact_mapping, redact_text, redact_words

VERSION = 1

_ARROW: dict[object, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    str | None: pa.string(),
    int | None: pa.int64(),
    float | None: pa.float64(),
    tuple[int, ...]: pa.list_(pa.int64()),
    tuple[float, ...]: pa.list_(pa.float64()),
    tuple[int, ...] | None: pa.list_(pa.int64()),
    tuple[float, ...] | None: pa.list_(pa.float64()),
    # JSON text.
    Mapping[str, tuple[int, ...]] | None: pa.string(),
}

_KEY_COLUMNS = [
    ("schema_version", pa.int32()),
    ("study", pa.string()),
    ("number", pa.int64()),
    ("key", pa.string()),
    ("purpose", pa.string()),
    ("simulated", pa.bool_()),
]


def _of_fields(record: type) -> list[tuple[str, pa.DataType]]:
    return [(f.name, _ARROW[f.type]) for f in fields(record)]


TRIALS = pa.schema(
    [
        *_KEY_COLUMNS,
        ("sweeper_version", pa.string()),
        ("context", pa.string()),
        ("state", pa.string()),
        ("attempt", pa.int64()),
        ("retry_of", pa.int64()),
        ("point", pa.string()),
        ("engine", pa.string()),
        ("command", pa.string()),
        ("model", pa.string()),
        ("gpus", pa.int64()),
        ("flags", pa.string()),
        ("env", pa.string()),
        ("server_version", pa.string()),
        ("server_flags", pa.string()),
        ("rewritten", pa.string()),
        ("time_scale", pa.float64()),
        ("max_total_tokens", pa.int64()),
        ("host", pa.string()),
        ("slot", pa.string()),
        ("gpu_name", pa.string()),
        ("gpu_ids", pa.list_(pa.int64())),
        ("driver_version", pa.string()),
        ("ray_node_id", pa.string()),
        ("sharing", pa.int64()),
        ("other_hosts", pa.list_(pa.string())),
        ("started_at", pa.timestamp("us", tz="UTC")),
        ("start_s", pa.float64()),
        ("measure_s", pa.float64()),
        ("stop_s", pa.float64()),
        ("memory_free_s", pa.float64()),
        ("phases_s", pa.string()),
        ("gpu_hours", pa.float64()),
        ("failure_class", pa.string()),
        ("failure_stage", pa.string()),
        ("failure_line", pa.string()),
        ("failure_exit_code", pa.int64()),
        ("failure_limit_s", pa.float64()),
        ("failure_fault", pa.string()),
        ("reason", pa.string()),
        ("log", pa.string()),
    ]
)
MEASUREMENTS = pa.schema([*_KEY_COLUMNS, *_of_fields(Measurement)])
REQUESTS = pa.schema([*_KEY_COLUMNS, *_of_fields(RequestTiming)])
SCHEMAS: Mapping[str, pa.Schema] = {
    "trials": TRIALS,
    "measurements": MEASUREMENTS,
    "requests": REQUESTS,
}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=False)


def _keys(record: TrialRecord) -> dict[str, Any]:
    return {
        "schema_version": VERSION,
        "study": record.trial.study,
        "number": record.trial.number,
        "key": record.trial.launch.key,
        "purpose": str(record.trial.purpose),
        "simulated": record.trial.launch.simulated,
    }


def _redacted_pairs(pairs: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    hidden = redact_mapping(pairs)
    return {name: (HIDDEN, HIDDEN) if is_secret_name(name) else hidden[name] for name in pairs}


def trial_row(record: TrialRecord) -> dict[str, Any]:
    """Return the row of the table of trials, secrets redacted."""
    trial, launch = record.trial, record.trial.launch
    server, host, failure = record.server, record.host, record.failure
    phase = record.phases_s.get
    return {
        **_keys(record),
        "sweeper_version": __version__,
        "context": trial.context,
        "state": str(record.state),
        "attempt": trial.attempt,
        "retry_of": trial.retry_of,
        "point": _json(dict(trial.point)),
        "engine": launch.engine,
        "command": _json(redact_words(launch.command)),
        "model": launch.model,
        "gpus": launch.gpus,
        "flags": _json(redact_mapping(launch.flags)),
        "env": _json(redact_mapping(launch.env)),
        "server_version": server.version if server else None,
        "server_flags": _json(redact_mapping(server.flags)) if server else None,
        "rewritten": _json(_redacted_pairs(server.rewritten)) if server else None,
        "time_scale": server.time_scale if server else None,
        "max_total_tokens": server.max_total_tokens if server else None,
        "host": host.host if host else None,
        "slot": host.slot if host else None,
        "gpu_name": host.gpu_name if host else None,
        "gpu_ids": list(host.gpu_ids) if host else None,
        "driver_version": host.driver_version if host else None,
        "ray_node_id": host.ray_node_id if host else None,
        "sharing": host.sharing if host else None,
        "other_hosts": list(host.other_hosts) if host else None,
        "started_at": datetime.fromisoformat(record.started_at).astimezone(UTC),
        "start_s": phase("start"),
        "measure_s": phase("measure"),
        "stop_s": phase("stop"),
        "memory_free_s": phase("memory_free"),
        "phases_s": _json(dict(record.phases_s)),
        "gpu_hours": record.gpu_hours,
        "failure_class": str(failure.kind) if failure else None,
        "failure_stage": str(failure.stage) if failure else None,
        "failure_line": redact_text(failure.line) if failure else None,
        "failure_exit_code": failure.exit_code if failure else None,
        "failure_limit_s": failure.limit_s if failure else None,
        "failure_fault": str(failure.policy.fault) if failure else None,
        "reason": redact_text(record.reason) if record.reason else record.reason,
        "log": record.log,
    }


def rows(record: TrialRecord, table: str) -> list[dict[str, Any]]:
    """Return a record's rows of one table."""
    if table == "trials":
        return [trial_row(record)]
    parts: Sequence[Measurement | RequestTiming] = (
        record.measurements if table == "measurements" else record.requests
    )
    return [
        {**_keys(record), **{f.name: _listed(getattr(part, f.name)) for f in fields(part)}}
        for part in parts
    ]


def _listed(value: object) -> object:
    if isinstance(value, Mapping):
        return _json(dict(value))
    return list(value) if isinstance(value, tuple) else value


def _tupled(value: object) -> Any:
    return tuple(_tupled(v) for v in value) if isinstance(value, list) else value


def measurement_of(row: Mapping[str, Any]) -> Measurement:
    """Return the measurement that a row holds."""
    found = _present(row, Measurement)
    if (kinds := found.get("accepted_by_kind")) is not None:
        found["accepted_by_kind"] = {k: tuple(v) for k, v in json.loads(kinds).items()}
    return Measurement(**found)


def request_of(row: Mapping[str, Any]) -> RequestTiming:
    """Return the request that a row holds."""
    return RequestTiming(**_present(row, RequestTiming))


def _present(row: Mapping[str, Any], record: type) -> dict[str, Any]:
    return {f.name: _tupled(row[f.name]) for f in fields(record) if row.get(f.name) is not None}


def record_of(
    row: Mapping[str, Any],
    measurements: Sequence[Measurement],
    requests: Sequence[RequestTiming],
) -> TrialRecord:
    """Return the record that a row of the table of trials and its parts hold.

    Raises:
        ValueError, KeyError, TypeError: The row is no trial.
    """
    launch = Launch(
        engine=row["engine"],
        command=tuple(json.loads(row["command"])),
        model=row["model"],
        gpus=row["gpus"],
        flags={k: _tupled(v) for k, v in json.loads(row["flags"]).items()},
        env=json.loads(row["env"]),
        simulated=row["simulated"],
    )
    trial = Trial(
        study=row["study"],
        number=row["number"],
        purpose=Purpose(row["purpose"]),
        point=json.loads(row["point"]),
        launch=launch,
        attempt=row["attempt"],
        retry_of=row["retry_of"],
        context=row["context"] or "",
    )
    failure = None
    if row["failure_class"] is not None:
        failure = Failure(
            kind=FailureClass(row["failure_class"]),
            stage=Stage(row["failure_stage"]),
            line=row["failure_line"] or "",
            exit_code=row["failure_exit_code"],
            limit_s=row["failure_limit_s"],
        )
    server = None
    if row["server_version"] is not None:
        server = ServerFacts(
            version=row["server_version"],
            flags={k: _tupled(v) for k, v in json.loads(row["server_flags"]).items()},
            # Files from before pairs were hidden as pairs have one text there.
            rewritten={
                k: _tupled(v) if isinstance(v, list) else (v, v)
                for k, v in json.loads(row["rewritten"]).items()
            },
            simulated=row["simulated"],
            time_scale=row["time_scale"] or 1.0,
            max_total_tokens=row["max_total_tokens"],
        )
    host = None
    if row["host"] is not None:
        host = HostFacts(
            host=row["host"],
            slot=row["slot"] or "",
            gpu_name=row["gpu_name"],
            gpu_ids=tuple(row["gpu_ids"] or ()),
            driver_version=row["driver_version"],
            ray_node_id=row["ray_node_id"],
            # Files from before these columns have null there.
            sharing=row.get("sharing") or 1,
            other_hosts=tuple(row.get("other_hosts") or ()),
        )
    return TrialRecord(
        trial=trial,
        state=TrialState(row["state"]),
        failure=failure,
        measurements=tuple(measurements),
        requests=tuple(requests),
        server=server,
        host=host,
        started_at=row["started_at"].isoformat(),
        phases_s=json.loads(row["phases_s"]),
        log=row["log"],
        reason=row["reason"],
    )
