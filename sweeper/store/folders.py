"""Which folder below `runs/` a study has.

`<study>` is its first run and `<study>.<n>` a fresh one. Names of studies hold dots as well, so
that `qwen2.5` may be the fifth run of `qwen2` or the first of `qwen2.5`: the space file that is
kept in the folder decides.
"""

from pathlib import Path

from sweeper.config import name_of


def newest_run(runs: Path, study: str) -> Path:
    """Return the study's newest folder: `<study>.<n>` with the largest n, else `<study>`."""
    ours = _ours(runs, study)
    return ours[-1] if ours else next_run(runs, study)


def next_run(runs: Path, study: str) -> Path:
    """Return a folder beside the old ones, for a fresh start."""
    there = _numbered(runs, study)
    if 1 not in there and not _ours(runs, study):
        return runs / study
    return runs / f"{study}.{max(there) + 1}"


def _ours(runs: Path, study: str) -> list[Path]:
    return [path for path in _numbered(runs, study).values() if _is_of(path, study)]


def _numbered(runs: Path, study: str) -> dict[int, Path]:
    """Return the folders that bear the study's name, by number, whosever they are."""
    first = runs / study
    found = {1: first} if first.exists() else {}
    if runs.is_dir():
        for path in runs.iterdir():
            name, _, tail = path.name.rpartition(".")
            if name == study and tail.isdecimal() and int(tail) > 1:
                found[int(tail)] = path
    return dict(sorted(found.items()))


def _is_of(folder: Path, study: str) -> bool:
    """Tell whether a folder is this study's, as far as its space file says."""
    try:
        return name_of((folder / "study.yaml").read_text(encoding="utf-8")) in (None, study)
    except (OSError, UnicodeDecodeError):
        return True
