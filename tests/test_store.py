import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from sweeper.config import parse_study
from sweeper.errors import StudyLocked, UserError
from sweeper.judging.verdict import shell_command
from sweeper.records import FlagValue, Measurement, RequestTiming, TrialState
from sweeper.store import Store, newest_run, next_run
from sweeper.store.schema import MEASUREMENTS, REQUESTS, SCHEMAS
from tests.build import make_launch, make_record
from tests.report.build import SPACE


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "naïve run ☃")
    store.create()
    return store


def test_a_record_comes_back_as_it_was_written(store: Store) -> None:
    record = make_record(3, 94.0)
    store.write(record)
    assert store.records(requests=True) == [record]
    assert store.requests_of(3) == record.requests


@pytest.mark.parametrize("state", [TrialState.FAILED, TrialState.INFEASIBLE])
def test_a_record_without_a_measurement_comes_back(store: Store, state: TrialState) -> None:
    record = make_record(0, state=state)
    store.write(record)
    assert store.records(requests=True) == [record]


def test_every_field_of_a_record_has_a_column_of_a_fixed_type() -> None:
    for record, schema in ((Measurement, MEASUREMENTS), (RequestTiming, REQUESTS)):
        assert {f.name for f in fields(record)} <= set(schema.names)
    assert not any(pa.types.is_null(f.type) for s in SCHEMAS.values() for f in s)


def test_the_first_trial_may_fail_and_its_table_is_still_one_table(store: Store) -> None:
    store.write(make_record(0, state=TrialState.FAILED))
    store.write(make_record(1, 101))
    store.write(make_record(2, 101.5))
    assert [r.state for r in store.records()] == [
        TrialState.FAILED,
        TrialState.COMPLETE,
        TrialState.COMPLETE,
    ]


def test_each_table_reads_as_one_in_arrow_pandas_polars_and_duckdb(store: Store) -> None:
    store.write(make_record(0, state=TrialState.FAILED))
    store.write(make_record(1, 90.0))
    for table, count in (("trials", 2), ("measurements", 1), ("requests", 5)):
        folder = store.folder / table
        pattern = f"{folder}/*.parquet"
        assert ds.dataset(folder).to_table().num_rows == count
        assert len(pd.read_parquet(folder)) == count
        assert pl.read_parquet(pattern).height == count
        relation = duckdb.sql(f"select count(*), bool_and(simulated) from '{pattern}'")
        assert relation is not None
        answer = relation.fetchall()
        assert answer == [(count, True)]


def test_a_column_that_an_older_file_lacks_is_null(store: Store) -> None:
    store.write(make_record(0))
    path = store.folder / "trials" / "000000.parquet"
    old = pq.read_table(path).drop_columns(["driver_version", "max_total_tokens"])
    pq.write_table(old, path)
    (record,) = store.records()
    assert record.server is not None
    assert record.server.max_total_tokens is None


@pytest.mark.parametrize("data", [b"", b"PAR1 cut", b"\x00" * 500])
def test_a_file_cut_by_a_crash_is_named_and_the_rest_is_read(store: Store, data: bytes) -> None:
    store.write(make_record(0))
    store.write(make_record(1))
    (store.folder / "trials" / "000000.parquet").write_bytes(data)
    assert [r.trial.number for r in store.records()] == [1]
    assert "trials/000000.parquet is left out" in store.problems[0]


def test_parts_without_a_trial_are_removed_and_their_number_is_used_again(store: Store) -> None:
    store.write(make_record(0))
    store.write(make_record(1))
    (store.folder / "trials" / "000001.parquet").unlink()
    (store.folder / "trials" / ".000002.parquet.partial").write_bytes(b"half")
    assert [r.trial.number for r in store.records()] == [0]
    store.clean()
    assert store.next_number() == 1
    assert not list(store.folder.rglob("*.partial"))
    assert not (store.folder / "requests" / "000001.parquet").exists()


def test_secrets_are_not_stored_and_the_identity_of_the_launch_stays(store: Store) -> None:
    launch = make_launch(
        flags={"api-key": "s3cret"},
        env={"HF_TOKEN": "s3cret", "HTTPS_PROXY": "http://me:s3cret@proxy:80"},
        command=("/mnt/disk_1/python", "-m", "server", "--api-key", "s3cret"),
    )
    store.write(make_record(0, launch=launch))
    for path in store.folder.rglob("*.parquet"):
        assert b"s3cret" not in path.read_bytes()
        assert "s3cret" not in str(pq.read_table(path).to_pylist())
    (record,) = store.records()
    assert record.trial.launch.key == launch.key
    assert record.trial.launch.command[0] == launch.command[0]


def test_a_secret_that_a_server_tells_otherwise_is_hidden_and_still_a_pair(store: Store) -> None:
    record = make_record(0)
    assert record.server is not None
    told: dict[str, tuple[FlagValue | None, FlagValue | None]] = {
        "api-key": ("s3cret", "****"),
        "page-size": (1, 16),
    }
    facts = replace(record.server, rewritten=told, flags={"api-key": "s3cret"})
    store.write(replace(record, server=facts))
    (stored,) = store.records()
    assert stored.server is not None
    assert stored.server.rewritten == {"api-key": ("***", "***"), "page-size": (1, 16)}
    assert stored.server.flags == {"api-key": "***"}


@pytest.mark.parametrize(
    "command",
    [
        ("/mnt/disk_1/venv/bin/python", "-m", "sglang.launch_server"),
        ("python", "-m", "sglang.launch_server", "--api-key", "s3cret"),
        ("python", "-m", "sglang.launch_server", "--api-key=s3cret"),
        ("docker", "run", "-e", "HF_TOKEN=hf_s3cret0s3cret0s3cret0", "image"),
    ],
)
def test_a_stored_command_is_that_of_the_same_setting_and_holds_no_secret(
    store: Store, command: tuple[str, ...]
) -> None:
    launch = make_launch(command=command, env={"HTTPS_PROXY": "http://me:s3cret@proxy:80"})
    store.write(make_record(0, launch=launch))
    (record,) = store.records()
    assert record.trial.launch.key == launch.key
    assert "s3cret" not in str(record)
    assert record.trial.launch.command[0] == command[0]


def test_the_copy_of_the_space_file_holds_no_secret_and_means_the_same_launches(
    store: Store,
) -> None:
    command = "[python, -m, sglang.launch_server, --admin-api-key, s3cret, -e, HF_TOKEN=s3cret]"
    text = SPACE.replace("kind: simulated", f"kind: sglang, command: {command}").replace(
        "tp-size: 2", "tp-size: 2, api-key: s3cret"
    )
    text += 'known:\n  - {steps: 2}\n# my own "api_key": "s3cret"\n'
    text = text.replace("baseline: {", "baseline: {env: {HF_TOKEN: s3cret, PASSWORD: 's3cret'}, ")
    asked = parse_study(text, "a.yaml")
    store.keep_study(asked.text)
    store.keep_study(asked.text)
    assert [p.name for p in store.folder.glob("study*")] == ["study.yaml"]
    kept = store.study_text()
    assert "s3cret" not in kept
    found = parse_study(kept, "b.yaml")
    assert found.baseline_launch().key == asked.baseline_launch().key
    assert found.launch(found.known[0]).key == asked.launch(asked.known[0]).key


def test_rows_and_the_copy_of_the_space_file_hide_the_same(store: Store) -> None:
    text = SPACE.replace("tp-size: 2", "tp-size: 2, served-model-name: hf_llama3").replace(
        "baseline: {",
        "baseline: {env: {OTEL_EXPORTER_OTLP_HEADERS: authorization=Bearer s3cret}, ",
    )
    asked = parse_study(text, "a.yaml")
    store.keep_study(asked.text)
    base = asked.baseline_launch()
    store.write(make_record(0, launch=base))
    kept = store.study_text()
    (record,) = store.records()
    assert "s3cret" not in kept
    assert "s3cret" not in str(record)
    assert "served-model-name: hf_llama3" in kept
    assert "--served-model-name hf_llama3" in shell_command(base)
    assert "s3cret" not in shell_command(base)
    found = parse_study(kept, "b.yaml").baseline_launch()
    assert found.key == base.key == record.trial.launch.key


def test_a_folder_that_cannot_be_made_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(UserError, match="cannot write to"):
        Store(tmp_path / "file" / "run").create()


def test_a_full_disk_is_one_message_and_harms_nothing(store: Store) -> None:
    store.write(make_record(0))
    (store.folder / "trials" / ".000001.parquet.partial").symlink_to("/dev/full")
    with pytest.raises(UserError, match="No space left on device"):
        store.write(make_record(1))
    assert [r.trial.number for r in store.records()] == [0]
    store.clean()
    store.write(make_record(1))
    assert [r.trial.number for r in store.records()] == [0, 1]


def test_a_second_driver_is_refused_until_the_first_lets_go(store: Store) -> None:
    store.lock()
    second = Store(store.folder)
    with pytest.raises(StudyLocked, match=f"process {os.getpid()}"):
        second.lock()
    store.unlock()
    second.lock()
    second.unlock()


def file_system_without_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_a_file_system_that_cannot_lock_is_not_taken_for_another_driver(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", file_system_without_locks)
    with pytest.raises(UserError, match=r"cannot lock .* No locks available") as caught:
        store.lock()
    assert not isinstance(caught.value, StudyLocked)


def test_a_lock_that_cannot_be_opened_is_one_message(store: Store) -> None:
    (store.folder / ".lock").mkdir()
    with pytest.raises(UserError, match=r"cannot write to .*\.lock: Is a directory"):
        store.lock()


def test_the_lock_of_a_killed_driver_is_free(store: Store) -> None:
    code = (
        "import sys, time; from pathlib import Path; from sweeper.store import Store\n"
        "store = Store(Path(sys.argv[1])); store.lock()\n"
        "print('locked', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(store.folder)], stdout=subprocess.PIPE
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"locked\n"
            with pytest.raises(StudyLocked):
                store.lock()
        finally:
            other.send_signal(signal.SIGKILL)
    store.lock()
    store.unlock()


def test_an_earlier_space_file_is_kept_beside_the_new_one(store: Store) -> None:
    store.keep_study("one")
    store.keep_study("one")
    store.keep_study("two")
    assert store.study_text() == "two"
    assert (store.folder / "study.1.yaml").read_text() == "one"
    assert not (store.folder / "study.2.yaml").exists()


class StoreReadWhileATrialEnds(Store):
    """Another process writes a trial after each table that is read."""

    number = 0

    def _rows(self, table: str) -> Iterable[dict[str, Any]]:
        found = list(super()._rows(table))
        self.number += 1
        Store(self.folder).write(make_record(self.number))
        return found


def test_a_trial_that_ends_while_rows_are_read_is_whole_or_not_there(store: Store) -> None:
    store.write(make_record(0))
    reader = StoreReadWhileATrialEnds(store.folder)
    records = reader.records(requests=True)
    assert reader.number == 3
    assert reader.problems == []
    assert [(len(r.measurements), len(r.requests)) for r in records] == [(1, 5)]


def test_a_study_whose_name_is_another_s_with_a_number_keeps_its_own_folders(
    tmp_path: Path,
) -> None:
    def start(study: str, folder: Path) -> str:
        store = Store(folder)
        store.create()
        store.keep_study(f"# a comment\nstudy: {study}\nengine: {{}}\n")
        return folder.name

    assert start("qwen2.5", newest_run(tmp_path, "qwen2.5")) == "qwen2.5"
    assert start("qwen2", newest_run(tmp_path, "qwen2")) == "qwen2"
    assert start("qwen2", newest_run(tmp_path, "qwen2")) == "qwen2"
    assert start("qwen2", next_run(tmp_path, "qwen2")) == "qwen2.6"
    assert start("'qwen2.6'", newest_run(tmp_path, "qwen2.6")) == "qwen2.6.2"
    assert start("'qwen2.6'", newest_run(tmp_path, "qwen2.6")) == "qwen2.6.2"
    assert newest_run(tmp_path, "qwen2") == tmp_path / "qwen2.6"
    assert newest_run(tmp_path, "qwen2.5") == tmp_path / "qwen2.5"


def test_no_earlier_space_file_is_overwritten_where_one_was_removed(store: Store) -> None:
    for text in ("one", "two", "three"):
        store.keep_study(text)
    (store.folder / "study.1.yaml").unlink()
    store.keep_study("four")
    assert (store.folder / "study.2.yaml").read_text() == "two"
    assert (store.folder / "study.3.yaml").read_text() == "three"


def test_a_fresh_run_stands_beside_the_old_and_is_the_newest(tmp_path: Path) -> None:
    assert next_run(tmp_path, "s") == tmp_path / "s"
    Store(tmp_path / "s").create()
    assert next_run(tmp_path, "s") == tmp_path / "s.2"
    Store(tmp_path / "s.2").create()
    assert newest_run(tmp_path, "s") == tmp_path / "s.2"
    assert next_run(tmp_path, "s") == tmp_path / "s.3"


def kept(folder: Path, study: str) -> Path:
    with Store(folder) as store:
        store.create()
        store.keep_study(f"study: {study}\n")
    return folder


def test_a_study_whose_name_looks_like_another_s_run_keeps_its_folder(tmp_path: Path) -> None:
    """Names such as llama3 and llama3.1 stand side by side."""
    newer = kept(newest_run(tmp_path, "llama3.1"), "llama3.1")
    older = kept(newest_run(tmp_path, "llama3"), "llama3")
    assert (older.name, newer.name) == ("llama3", "llama3.1")
    fresh = kept(next_run(tmp_path, "llama3"), "llama3")
    assert fresh.name == "llama3.2"
    assert newest_run(tmp_path, "llama3") == fresh
    assert newest_run(tmp_path, "llama3.1") == newer
    # A run of another study holds the very name.
    third = kept(newest_run(tmp_path, "llama3.2"), "llama3.2")
    assert third not in (older, newer, fresh)
    assert newest_run(tmp_path, "llama3.2") == third
    assert newest_run(tmp_path, "llama3") == fresh


@pytest.mark.parametrize("place", ["trials", "requests/.000000.parquet.partial", ".lock"])
def test_a_folder_that_refuses_is_one_message(store: Store, place: str) -> None:
    path = store.folder / place
    if place == "trials":
        path.rmdir()
        path.write_text("a file in the way")
    else:
        path.mkdir()

    def begin() -> None:
        store.create()
        store.lock()
        store.clean()

    with pytest.raises(UserError, match="cannot write to"):
        begin()


def test_a_disk_that_is_full_at_the_start_is_one_message(store: Store) -> None:
    (store.folder / ".study.yaml.partial").symlink_to("/dev/full")
    with pytest.raises(UserError, match="No space left on device"):
        store.keep_study("one")


def test_a_copy_of_the_space_file_that_is_broken_is_one_message_and_is_kept(store: Store) -> None:
    (store.folder / "study.yaml").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"study\.yaml is not UTF-8"):
        store.study_text()
    store.keep_study("one")
    assert (store.folder / "study.1.yaml").read_bytes() == b"\xff"
