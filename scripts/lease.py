"""Run a study on a machine that is lent for a while, and carry its rows from one loan to the next.

    python -m scripts.lease unpack PACK... --runs runs      what an earlier loan gave
    python -m scripts.lease run SPACE --seconds 560         goes on with it, and stops in time
    python -m scripts.lease pack RUN... --into OUT          few files of limited size

`run` is `python -m sweeper.search SPACE` with an end: after a trial it stops the sweep if the
longest trial so far would not fit any more, and it stops it in any case `--reserve` seconds before
the end. A sweep that is stopped ends its server, keeps all rows and writes its results; the same
command goes on there.
"""

import argparse
import contextlib
import io
import itertools
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.config import find_space, load_study
from sweeper.errors import UserError
from sweeper.store import newest_run

#: Rebuilt from the rows, or of use on the machine alone.
LEFT_OUT = frozenset({"cache", "report.html", "plotly.min.js", ".lock"})
#: Bytes of one part, and how many files one pack may have.
PART_BYTES, MOST_PARTS = 15 * 2**20, 8
_POLL_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """How long a sweep may run.

    Attributes:
        seconds: From its beginning to the moment it must be gone.
        reserve_s: How long it may take to stop its server and write its results.
    """

    seconds: float
    reserve_s: float

    def is_over(self, ends_s: Sequence[float], now_s: float) -> bool:
        """Tell whether the sweep must be stopped now.

        Args:
            ends_s: Seconds from the beginning to the end of each trial so far, in order; the
                last one counts as just ended.
            now_s: Seconds from the beginning to now.
        """
        left_s = self.seconds - self.reserve_s - now_s
        if left_s <= 0:
            return True
        if not ends_s or now_s - ends_s[-1] > 2 * _POLL_S:
            return False  # a trial is on its way: it may still end in time
        # Compiling makes the first trial long; a later one is the better guess where there is one.
        lengths = [b - a for a, b in itertools.pairwise(ends_s)] or [ends_s[0]]
        return max(lengths) > left_s


def run(space: str, lease: Lease, *, runs: Path, more: Sequence[str] = ()) -> int:
    """Run `sweeper.search` within a lease; return its exit status.

    Raises:
        UserError: There is no such space file, or a mistake in it.
    """
    study = load_study(find_space(space))
    folder = newest_run(runs, study.name)
    command = [sys.executable, "-m", "sweeper.search", space, "--runs", str(runs), *more]
    begun_s = time.monotonic()
    seen = _trials(folder)
    # Its own group: a terminal's Ctrl-C reaches us, and we pass it on once.
    child = subprocess.Popen(command, start_new_session=True)
    ends_s: list[float] = []
    with _passed_on(child):
        while child.poll() is None:
            now_s = time.monotonic() - begun_s
            found = _trials(newest_run(runs, study.name))
            ends_s += [now_s] * (found - seen)
            seen = found
            if lease.is_over(ends_s, now_s):
                return _stop(child, until_s=begun_s + lease.seconds)
            time.sleep(_POLL_S)
    return child.returncode


def _stop(child: subprocess.Popen[bytes], *, until_s: float) -> int:
    """Stop the sweep politely, then at once, then by force when the time is up."""
    left_s = max(until_s - time.monotonic(), 0.0)
    for number, share in ((signal.SIGINT, 0.8), (signal.SIGINT, 0.2)):
        child.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(left_s * share)
    child.kill()
    return child.wait()


@contextlib.contextmanager
def _passed_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass SIGINT and SIGTERM on to the sweep, which ends by itself then."""
    before = {
        number: signal.signal(number, lambda *_: child.send_signal(signal.SIGINT))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _trials(folder: Path) -> int:
    return sum(not p.name.startswith(".") for p in (folder / "trials").glob("*.parquet"))


def pack(folders: Sequence[Path], into: Path, *, part_bytes: int = PART_BYTES) -> list[Path]:
    """Pack run folders into one archive, cut into parts.

    Args:
        folders: Run folders, of different names.
        into: Folder of the parts `runs.tar.xz.00`, `.01`, ...; older parts there are removed.
        part_bytes: The most that one part may have.

    Raises:
        UserError: It takes too many parts, or a folder is no run; then the others are packed.
    """
    runs = [folder for folder in folders if (folder / "study.yaml").is_file()]
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:xz", preset=6) as tar:
        for folder in runs:
            tar.add(folder, arcname=folder.name, filter=_kept)
    data = whole.getvalue()
    count = -(-len(data) // part_bytes)
    if count > MOST_PARTS:
        raise UserError(f"{len(data) / 2**20:.0f} MiB take {count} parts, at most {MOST_PARTS}")
    into.mkdir(parents=True, exist_ok=True)
    for old in into.glob("runs.tar.xz.*"):
        old.unlink()
    parts = [into / f"runs.tar.xz.{index:02d}" for index in range(count)]
    for index, part in enumerate(parts):
        part.write_bytes(data[index * part_bytes : (index + 1) * part_bytes])
    if others := [str(folder) for folder in folders if folder not in runs]:
        names = ", ".join(others)
        raise UserError(f"{names}: no study there; all else is packed")
    return parts


def _kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if LEFT_OUT.intersection(member.name.split("/")) else member


def unpack(parts: Sequence[Path], runs: Path) -> list[Path]:
    """Unpack the parts of one pack below `runs` and return the run folders.

    A folder that is there already is not touched: what an earlier loan gave must not be mixed with
    rows of another.

    Raises:
        UserError: A part is missing or broken, or a folder is there already.
    """
    data = b"".join(part.read_bytes() for part in sorted(parts))
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:xz") as tar:
            names = sorted({name.split("/")[0] for name in tar.getnames()})
            there = [name for name in names if (runs / name).exists()]
            if there:
                raise UserError(f"{runs / there[0]} is there already")
            tar.extractall(runs, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"cannot unpack {len(parts)} parts: {error}") from error
    return [runs / name for name in names]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.lease", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser(
        "run",
        help="run a study for a limited time",
        epilog="Words after -- are passed on to sweeper.search.",
    )
    one.add_argument("space")
    one.add_argument("--seconds", type=float, required=True, help="the whole time")
    one.add_argument("--reserve", type=float, default=20.0, help="seconds of it to stop in")
    one.add_argument("--runs", type=Path, default=Path("runs"))
    two = verbs.add_parser("pack", help="pack run folders into few files")
    two.add_argument("folders", nargs="+", type=Path)
    two.add_argument("--into", type=Path, required=True)
    three = verbs.add_parser("unpack", help="unpack what was packed")
    three.add_argument("parts", nargs="+", type=Path)
    three.add_argument("--runs", type=Path, default=Path("runs"))
    words = list(sys.argv[1:] if argv is None else argv)
    cut = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:cut])
    try:
        if options.verb == "run":
            lease = Lease(seconds=options.seconds, reserve_s=options.reserve)
            return run(options.space, lease, runs=options.runs, more=words[cut + 1 :])
        if options.verb == "pack":
            made = pack(options.folders, options.into)
        else:
            made = unpack(options.parts, options.runs)
    except UserError as error:
        sys.stderr.write(f"lease: {error}\n")
        return 2
    sys.stdout.write("".join(f"{path}\n" for path in made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
