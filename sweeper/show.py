"""`python -m sweeper.show RUN`: a running or finished sweep, seen from another shell.

It starts nothing and changes nothing; what is read, and what is said of it, is `terminal/look.py`.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from sweeper.errors import UserError
from sweeper.store import Store, newest_run
from sweeper.terminal.lines import best_line, record_line
from sweeper.terminal.look import Look, facts, head_lines, look
from sweeper.terminal.reader import print_anything
from sweeper.terminal.table import print_table
from sweeper.wording import visible

#: Real seconds between two looks of --follow.
POLL_S = 1.0
EXIT_USER, EXIT_INT = 2, 130


def show(seen: Look, out: TextIO, *, as_json: bool, table: bool = True) -> None:
    """Print one look."""
    if as_json:
        out.write(json.dumps(facts(seen), ensure_ascii=True) + "\n")
    else:
        out.write("\n".join(head_lines(seen)) + "\n")
        if table and seen.records:
            out.write("\n")
            print_table(seen.records, seen.study, out)
    out.flush()


def follow(
    folder: Path,
    out: TextIO,
    *,
    as_json: bool,
    now: Callable[[], datetime],
    sleep: Callable[[float], None],
) -> None:
    """Print each trial as it ends, until no driver is left; with JSON a whole look each time."""
    seen = look(folder, now())
    show(seen, out, as_json=as_json)
    best = best_line(seen.records, seen.study)
    while seen.driver:
        before = {r.trial.number for r in seen.records}
        stamp = _stamp(folder)
        while _stamp(folder) == stamp and Store(folder).driver():
            sleep(POLL_S)
        seen = look(folder, now())
        if as_json:
            show(seen, out, as_json=True)
            continue
        for record in seen.records:
            if record.trial.number not in before:
                out.write(
                    f"[{seen.launches}/{seen.study.budget.launches}] "
                    f"{record_line(record, seen.study)}\n"
                )
        line = best_line(seen.records, seen.study)
        if line != best:
            best = line
            out.write(f"    {line}\n")
        if not seen.driver:
            out.write("\n".join(head_lines(seen)) + "\n")
        out.flush()


def _stamp(folder: Path) -> int:
    """Return what changes whenever a trial is stored."""
    try:
        return (folder / "trials").stat().st_mtime_ns
    except OSError:
        return 0


def find_run(name: str) -> Path:
    """Return a run's folder: the path itself, or the newest run of that name below `runs`.

    Raises:
        UserError: There is neither.
    """
    path = Path(name)
    if path.is_dir():
        return path
    if path.name == name:
        # A folder that was renamed is no run of a study of that name, and may be looked at.
        for found in (newest_run(Path("runs"), name), Path("runs") / name):
            if found.is_dir():
                return found
    raise UserError(f"there is no folder {name}, nor a run of that name in {Path('runs')}")


def _now() -> datetime:
    return datetime.now(UTC)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0; 2 after a mistake of the user's, which is printed in one line; 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(
        prog="python -m sweeper.show",
        description="Show a running or finished sweep from another shell; changes nothing.",
    )
    parser.add_argument("run", metavar="RUN", help="folder of a study, or its name below runs/")
    parser.add_argument("--json", action="store_true", help="one line of JSON, for scripts")
    parser.add_argument(
        "--follow", action="store_true", help="go on until the sweep's driver has ended"
    )
    options = parser.parse_args(argv)
    out = sys.stdout
    try:
        folder = find_run(options.run)
        if options.follow:
            follow(folder, out, as_json=options.json, now=_now, sleep=time.sleep)
        else:
            show(look(folder, _now()), out, as_json=options.json)
    except UserError as error:
        sys.stderr.write(f"sweeper: {visible(' '.join(str(error).split()))}\n")
        return EXIT_USER
    except KeyboardInterrupt:
        return EXIT_INT
    return 0


if __name__ == "__main__":
    # A reader that goes away, as `head` does, ends the command without a traceback.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    print_anything()
    sys.exit(main())
