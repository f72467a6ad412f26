"""Reading a log that grows, in pieces of any size."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sweeper.engines.base import Ending
from sweeper.errors import Failure, Stage
from sweeper.serving.log import LogTail


class RecordingReader:
    """Keeps what it is fed."""

    stage = Stage.ARGS

    def __init__(self) -> None:
        self.fed = b""

    def feed(self, data: bytes) -> None:
        self.fed += data

    def failure(self, ending: Ending) -> Failure | None:
        return None


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@given(pieces=st.lists(st.binary(max_size=50), max_size=10))
def test_a_reader_gets_every_byte_once(pieces: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        reader = RecordingReader()
        tail = LogTail(path, reader)
        for piece in pieces:
            append(path, piece)
            tail.read()
        assert reader.fed == b"".join(pieces)
        tail.close()


def test_what_a_log_held_before_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, b"an earlier server\n")
    reader = RecordingReader()
    tail = LogTail(path, reader)
    assert not tail.read()
    append(path, b"this one\n")
    assert tail.read()
    assert reader.fed == b"this one\n"
    tail.close()


def test_echoes_of_our_own_probes_are_no_progress(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LogTail(path, RecordingReader(), echoes=("POST /generate",))
    for data, is_progress in (
        (b'INFO: 127.0.0.1:1 - "POST /generate HTTP/1.1" 503\n', False),
        (b"\n\n", False),
        (b"loading 1\r", True),
        (b"loading 2", True),
        (b'"POST /generate HTTP/1.1" 503\nfailed\n', True),
    ):
        append(path, data)
        assert tail.read() is is_progress, data
    assert tail.last_line == "failed"
    tail.close()


def test_a_reader_far_behind_skips_to_the_end_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    reader = RecordingReader()
    tail = LogTail(path, reader)
    with path.open("wb") as file:
        file.seek(100 * 1024 * 1024)  # a hole, so that the disk does not fill
        file.write(b"\nthe end\n")
    tail.drain()
    assert reader.fed.endswith(b"\nthe end\n")
    assert len(reader.fed) < 5 * 1024 * 1024
    assert tail.last_line == "the end"
    tail.close()


def test_a_line_of_any_length_is_kept_short(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LogTail(path, RecordingReader())
    append(path, b"z" * 3_000_000 + b" end")
    assert tail.read()
    assert tail.last_line.endswith("z end")
    assert len(tail.last_line) <= 500
    tail.close()
