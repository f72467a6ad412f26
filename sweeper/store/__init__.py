"""Results on disk; the only user of PyArrow.

    runs/<study>/  study.yaml  trials/ measurements/ requests/  logs/  report.html  best.sh

One Parquet file a trial in each of the three folders. The order of writing is requests,
measurements, trial: a trial is there once its row in `trials/` is, and parts without it are
leftovers of a crash. Each file is written under a hidden name, synced and renamed, so a reader
sees whole files only.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from sweeper.errors import StudyLocked, UserError
from sweeper.records import RequestTiming, TrialRecord
from sweeper.store.folders import newest_run, next_run
from sweeper.store.schema import (
    SCHEMAS,
    VERSION,
    measurement_of,
    record_of,
    request_of,
    rows,
)

__all__ = ["Store", "newest_run", "next_run"]


class Store:
    """The folder of one study.

    Attributes:
        folder: Where everything is.
        problems: What could not be read, a line each; filled by `records`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []
        self._lock: TextIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unlock()

    def create(self) -> None:
        """Make the folders.

        Raises:
            UserError: They cannot be made or written to.
        """
        with writing(self.folder):
            for name in (*SCHEMAS, "logs"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            if not os.access(self.folder, os.W_OK):
                raise PermissionError(13, "Permission denied")

    def lock(self) -> None:
        """Become the only driver of this study, until `unlock` or death.

        Raises:
            StudyLocked: A living driver holds it.
            UserError: The file system cannot lock, or the file is another person's.
        """
        # The file is kept open as long as the lock is held.
        path = self.folder / ".lock"
        with writing(path):
            handle = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if not isinstance(error, BlockingIOError):
                handle.close()
                raise UserError(
                    f"cannot lock {path}: {error.strerror}; a shared file system needs its locks"
                ) from None
            handle.seek(0)
            owner = handle.read().strip()
            handle.close()
            raise StudyLocked(
                f"another driver (process {owner or 'unknown'}) is at work on {self.folder}; "
                "wait for it, or use --fresh"
            ) from None
        self._lock = handle
        with writing(path):
            handle.truncate(0)
            handle.write(str(os.getpid()))
            handle.flush()

    def driver(self) -> str | None:
        """Return the process number of the living driver, "unknown" at worst; None without one.

        Takes the lock for an instant, shared, and so must not be asked many times a second.
        """
        try:
            with (self.folder / ".lock").open(encoding="utf-8") as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return handle.read().strip() or "unknown"
        except OSError:
            pass
        return None

    def unlock(self) -> None:
        """Let another driver in."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def clean(self) -> None:
        """Remove what a crash left: hidden half-written files, and parts without a trial.

        Raises:
            UserError: The folder refuses.
        """
        finished = {path.name for path in self._files("trials")}
        with writing(self.folder):
            for table in SCHEMAS:
                for path in (self.folder / table).iterdir():
                    half = path.name.startswith(".") and path.name.endswith(".partial")
                    orphan = table != "trials" and path.suffix == ".parquet"
                    if half or (orphan and path.name not in finished):
                        path.unlink(missing_ok=True)

    def write(self, record: TrialRecord) -> None:
        """Put a finished trial on disk, whole or not at all.

        Raises:
            UserError: The disk is full or refuses; nothing that stood there is harmed.
        """
        name = f"{record.trial.number:06d}.parquet"
        try:
            for table in ("requests", "measurements", "trials"):
                self._write_table(table, name, rows(record, table))
        except OSError as error:
            raise UserError(
                f"cannot write trial {record.trial.number} to {self.folder}: {error.strerror}"
            ) from error

    def _write_table(self, table: str, name: str, found: Sequence[Mapping[str, Any]]) -> None:
        schema = SCHEMAS[table].with_metadata({"sweeper.schema_version": str(VERSION)})
        data = pa.Table.from_pylist(list(found), schema=schema)
        folder = self.folder / table
        partial = folder / f".{name}.partial"
        with partial.open("wb") as handle:
            pq.write_table(
                data, handle, compression="zstd", write_statistics=False, store_schema=False
            )
            handle.flush()
            os.fsync(handle.fileno())
        partial.rename(folder / name)
        sync_folder(folder)

    def _files(self, table: str) -> list[Path]:
        folder = self.folder / table
        return sorted(p for p in folder.glob("*.parquet") if not p.name.startswith("."))

    def records(self, *, requests: bool = False) -> list[TrialRecord]:
        """Return all finished trials by number; requests are read only when asked for.

        A file that cannot be read is left where it is, out of the result, and named in
        `problems`.
        """
        self.problems = []
        # What is written last is read first: a trial that ends meanwhile has all of its parts.
        finished = list(self._rows("trials"))
        measured = _by_number(self._rows("measurements"))
        sent = _by_number(self._rows("requests")) if requests else {}
        found: dict[int, TrialRecord] = {}
        for row in finished:
            number = row["number"]
            try:
                record = record_of(
                    row,
                    [measurement_of(r) for r in measured.get(number, ())],
                    [request_of(r) for r in sent.get(number, ())],
                )
            except (ValueError, KeyError, TypeError) as error:
                self.problems.append(f"trial {number} is left out: {error}")
                continue
            if number in found:
                self.problems.append(f"trial {number} is there twice; the first counts")
                continue
            found[number] = record
        return [found[number] for number in sorted(found)]

    def requests_of(self, number: int) -> tuple[RequestTiming, ...]:
        """Return the requests of one trial."""
        path = self.folder / "requests" / f"{number:06d}.parquet"
        return tuple(request_of(r) for r in self._read(path, "requests"))

    def _rows(self, table: str) -> Iterable[dict[str, Any]]:
        for path in self._files(table):
            yield from self._read(path, table)

    def _read(self, path: Path, table: str) -> list[dict[str, Any]]:
        schema = SCHEMAS[table]
        try:
            data = pq.read_table(path, partitioning=None)
            columns = [
                data.column(f.name).cast(f.type)
                if f.name in data.column_names
                else pa.nulls(data.num_rows, f.type)
                for f in schema
            ]
        except (OSError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            self.problems.append(f"{path.relative_to(self.folder)} is left out: {reason}")
            return []
        found: list[dict[str, Any]] = pa.Table.from_arrays(columns, schema=schema).to_pylist()
        return found

    def next_number(self) -> int:
        """Return the first trial number that no file of any table bears."""
        numbers = [
            int(p.stem) for table in SCHEMAS for p in self._files(table) if p.stem.isdigit()
        ]
        return max(numbers, default=-1) + 1

    def log_path(self, number: int) -> Path:
        """Return where the server log of a trial is."""
        return self.folder / "logs" / f"{number:06d}.log"

    def study_text(self) -> str:
        """Return the space file that the study was last run with.

        Raises:
            UserError: This is no folder of a study.
        """
        try:
            return (self.folder / "study.yaml").read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(f"{self.folder} holds no study: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UserError(f"{self.folder / 'study.yaml'} is not UTF-8 text") from None

    def keep_study(self, text: str) -> None:
        """Keep a copy of the space file; an older, different one stays as study.<n>.yaml.

        A study's text is without secrets: it is for looking back, never to launch from.

        Raises:
            UserError: It cannot be written.
        """
        path = self.folder / "study.yaml"
        with writing(self.folder):
            if path.exists():
                old = path.read_bytes()
                if old == text.encode():
                    return
                numbers = (p.name.split(".")[1] for p in self.folder.glob("study.*.yaml"))
                count = max((int(n) for n in numbers if n.isdecimal()), default=0) + 1
                write_bytes(self.folder / f"study.{count}.yaml", old)
            write_text(path, text)


def _by_number(found: Iterable[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in found:
        groups.setdefault(row["number"], []).append(row)
    return groups


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make a disk that is full or refuses one message.

    Raises:
        UserError: It is or does.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write to {path}: {error.strerror}") from None


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a text file whole or not at all."""
    write_bytes(path, text.encode(), mode=mode)


def write_bytes(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
    partial.chmod(mode)
    partial.rename(path)
