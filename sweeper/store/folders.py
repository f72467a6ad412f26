"""Which folder a run of a study has: runs/<study>/, and runs/<study>.<n>/ after a fresh start."""

from pathlib import Path

from sweeper.config import name_of


def newest_run(runs: Path, study: str) -> Path:
    """Return the study's newest folder: `<study>.<n>` with the largest n, else `<study>`.

    `llama3.1` may be the folder of a study of that name, and no run of `llama3`; the space file in
    it tells.
    """
    own = [entry for entry in _numbered(runs, study) if _holds(entry[1], study)]
    return own[-1][1] if own else next_run(runs, study)


def next_run(runs: Path, study: str) -> Path:
    """Return a folder beside the old ones, for a fresh start."""
    number, newest = _numbered(runs, study)[-1]
    return runs / f"{study}.{number + 1}" if newest.exists() else newest


def _holds(folder: Path, study: str) -> bool:
    """Tell whether a folder is this study's, as far as its space file says."""
    try:
        return name_of((folder / "study.yaml").read_text(encoding="utf-8")) in (None, study)
    except (OSError, UnicodeDecodeError):
        return True


def _numbered(runs: Path, study: str) -> list[tuple[int, Path]]:
    found = [(1, runs / study)]
    for path in runs.glob(f"{study}.*"):
        tail = path.name.removeprefix(f"{study}.")
        if tail.isdecimal():
            found.append((int(tail), path))
    return sorted(found)
