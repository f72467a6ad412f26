"""What people see on terminals of all kinds."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TextIO, cast

import pytest
from rich.cells import cell_len

from sweeper.cluster import Status
from sweeper.errors import Stage
from sweeper.records import TrialRecord
from sweeper.study import Study
from sweeper.terminal.display import LiveDisplay, PlainDisplay, View, make_display
from sweeper.terminal.lines import best_line, record_line
from sweeper.terminal.reader import _Lasting
from sweeper.terminal.table import print_table
from tests.report import build
from tests.report.runs import HOSTILE, RUNS

_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: What the live view itself sends: colours, and erasing its own lines.
_OWN = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]|[0-9]*[AK]|2K)")


class Clock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Terminal:
    """A real pseudo-terminal; `text` is all that was written to it."""

    def __init__(self, columns: int) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.stream = os.fdopen(theirs, "w", encoding="utf-8")
        self._pieces: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while piece := os.read(self._ours, 65536):
                self._pieces.append(piece)
        except OSError:
            pass  # The other side was closed.

    def close(self) -> str:
        self.stream.close()
        self._reader.join(timeout=30)
        os.close(self._ours)
        return b"".join(self._pieces).decode()


@contextmanager
def terminal(columns: int, show: Callable[[LiveDisplay], None], clock: Clock) -> Iterator[str]:
    screen = Terminal(columns)
    # As the live view asks the stream only, COLUMNS of the test's own shell must not count.
    display = LiveDisplay(screen.stream, clock, width=columns)
    show(display)
    display.close()
    yield screen.close()


def view(study: Study, records: list[TrialRecord], **more: object) -> View:
    given: dict[str, object] = {
        "study": study,
        "records": records,
        "running": [records[-1].trial] if records else [],
        "status": {
            "node-with-a-long-name.example/0": Status(
                number=records[-1].trial.number if records else None,
                stage=Stage.SERVING,
                detail="single 1/3: prompt 2 of 5",
                output_tok_s=91.2,
            )
        },
        "launches": len(records),
        "elapsed_s": 754.0,
        "seconds_left": 600.0,
        "best": (best_line(records, study),),
    }
    return View(**{**given, **more})  # type: ignore[arg-type]


def hostile_view() -> View:
    run = RUNS["hostile"]()
    return view(run.study, list(run.records), status={HOSTILE[7]: Status(detail=HOSTILE[7])})


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("kind", ["a_night", "hostile"])
def test_no_line_of_the_live_view_is_wider_than_the_terminal(columns: int, kind: str) -> None:
    run = RUNS[kind]()
    shown = hostile_view() if kind == "hostile" else view(run.study, list(run.records))

    def show(display: LiveDisplay) -> None:
        for record in run.records:
            display.finished(record, shown)

    with terminal(columns, show, Clock()) as text:
        assert not _CODES.sub("", _OWN.sub("", text)).count("\x1b")
        for line in _CODES.sub("", text).replace("\r", "\n").split("\n"):
            assert cell_len(line) <= columns


@pytest.mark.parametrize("make", ["record_line", "plain", "live", "table"])
def test_control_characters_and_markup_of_names_are_shown_and_not_obeyed(make: str) -> None:
    run = RUNS["hostile"]()
    stream = io.StringIO()
    if make == "record_line":
        stream.write("".join(record_line(r, run.study) for r in run.records))
    elif make == "table":
        print_table(run.records, run.study, stream, width=400)
    else:
        display = PlainDisplay(stream) if make == "plain" else LiveDisplay(stream, width=400)
        for record in run.records:
            display.finished(record, hostile_view())
        display.say(HOSTILE[7])
        display.close()
    text = stream.getvalue()
    assert "\x00" not in text
    assert "\x1b[31m" not in text
    assert "\u202e" not in text
    assert "<U+001B>" in text
    if make != "table":
        assert "</script>" in text


def test_the_bar_has_a_line_of_its_own_so_that_what_is_left_is_seen() -> None:
    study = build.study()
    records = build.night(study, 5)

    def show(display: LiveDisplay) -> None:
        display.update(view(study, records))

    with terminal(80, show, Clock()) as text:
        lines = [line.strip() for line in _CODES.sub("", text).split("\n")]
        assert "━" * 40 in lines
        assert "5 of 30 launches, 12 min 34 s, about 10 min 00 s left" in lines
        assert "SIMULATED: no GPU, no SGLang" in [line.rstrip() for line in lines]


def test_a_view_in_which_nothing_changes_is_hardly_redrawn() -> None:
    study = build.study()
    records = build.night(study, 5)
    clock = Clock()

    def show(display: LiveDisplay) -> None:
        for half_seconds in range(120):
            clock.now_s = half_seconds / 2
            display.update(view(study, records, elapsed_s=clock.now_s))

    with terminal(80, show, clock) as text:
        assert 1 <= text.count("of 30 launches") <= 7


def test_a_view_that_always_changes_is_redrawn_once_a_second() -> None:
    study = build.study()
    records = build.night(study, 5)
    clock = Clock()

    def show(display: LiveDisplay) -> None:
        for tenths in range(100):
            clock.now_s = tenths / 10
            status = {"local-0": Status(number=4, detail=f"prompt {tenths}")}
            display.update(view(study, records, status=status))

    with terminal(80, show, clock) as text:
        assert 5 <= text.count("of 30 launches") <= 11


@pytest.mark.parametrize("kind", ["dumb", "unknown", ""])
def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", kind)
    screen = Terminal(80)
    assert isinstance(make_display(screen.stream), PlainDisplay)
    screen.close()


def test_a_file_gets_plain_lines_and_no_codes() -> None:
    run = RUNS["a_night"]()
    stream = io.StringIO()
    display = make_display(stream)
    for record in run.records:
        display.finished(record, view(run.study, list(run.records)))
    display.close()
    print_table(run.records, run.study, stream)
    assert "\x1b" not in stream.getvalue()
    assert all(cell_len(line) <= 80 for line in stream.getvalue().splitlines()[-20:])


def test_no_color_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    run = RUNS["a_night"]()

    def show(display: LiveDisplay) -> None:
        display.finished(run.records[0], view(run.study, list(run.records)))

    with terminal(80, show, Clock()) as text:
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]", text)


def test_the_heartbeat_says_what_runs_after_half_a_minute_of_silence() -> None:
    study = build.study()
    records = build.night(study, 2)
    clock, stream = Clock(), io.StringIO()
    display = PlainDisplay(stream, clock)
    for second in range(0, 70, 5):
        clock.now_s = float(second)
        display.update(view(study, records))
    assert len(stream.getvalue().splitlines()) == 2
    assert "single 1/3: prompt 2 of 5, 91.2 tok/s" in stream.getvalue()


def test_the_best_setting_is_said_when_it_changes_only() -> None:
    study = build.study()
    records = build.night(study, 12)
    stream = io.StringIO()
    display = PlainDisplay(stream)
    for number in range(1, len(records) + 1):
        display.finished(records[number - 1], view(study, records[:number]))
    said = [line for line in stream.getvalue().splitlines() if line.startswith("    ")]
    assert said == list(dict.fromkeys(said))
    assert "tok/s" in said[-1]
    assert "output_tok_s" not in stream.getvalue()


def test_a_retry_says_whose_it_is() -> None:
    study = build.small_study()
    record = build.record(study, 7, build.point(1), tok_s=90.0)
    record = replace(record, trial=replace(record.trial, attempt=1, retry_of=3))
    assert "(attempt 2 of #3)" in record_line(record, study)


def test_the_table_says_once_what_all_settings_share() -> None:
    study = build.small_study()
    records = [build.record(study, 0, tok_s=90.0)]
    records += [build.record(study, n, build.point(n), tok_s=80.0 + n) for n in (1, 2, 3)]
    stream = io.StringIO()
    print_table(records, study, stream, width=80)
    lines = stream.getvalue().splitlines()
    assert "in all of these: draft=ours topk=1 nccl=default" in lines
    assert not any("nccl" in line for line in lines[:-1])
    assert any("83.0" in line and "steps=3 draft_tokens=4" in line for line in lines)


def test_a_table_of_nothing_says_so() -> None:
    stream = io.StringIO()
    print_table([], build.small_study(), stream)
    assert stream.getvalue() == "no setting was measured to the end\n"


def test_a_terminal_that_is_closed_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        display = make_display(cast(TextIO, _Lasting(stream)))
        assert isinstance(display, LiveDisplay)
        os.close(ours)
        display.say("nobody reads this")
        display.update(view(build.small_study(), []))
        display.close()


_REDRAW = """
import sys
from sweeper.terminal.display import LiveDisplay
from sweeper.terminal.reader import outlive_reader
from tests.report.runs import RUNS
from tests.test_display import view
outlive_reader()
display = LiveDisplay(sys.stdout, width=80)
display.update(view(RUNS["hostile"]().study, []))
display.say("\\u2603")
display.close()
print("done", file=sys.stderr)
"""


def test_a_terminal_that_lacks_characters_ends_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _REDRAW],
        env={**os.environ, "PYTHONIOENCODING": "latin-1", "FORCE_COLOR": "1", "TERM": "xterm"},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        encoding="latin-1",
        check=False,
    )
    assert done.stderr == "done\n"
    assert "?" in done.stdout
