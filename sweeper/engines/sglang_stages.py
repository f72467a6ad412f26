"""Follows an SGLang server through its stages, by the marks in its log."""

import re

from sweeper.errors import Stage

_ORDER = {stage: number for number, stage in enumerate(Stage)}
#: Ranks beyond these are not told apart.
_MOST_RANKS = 64

#: Words of a line -> the stage that begins with it.
_MARKS: tuple[tuple[str, Stage], ...] = (
    ("server_args=", Stage.IMPORT),
    ("Init torch distributed begin", Stage.DIST_INIT),
    ("Init parallel begin", Stage.DIST_INIT),
    ("Load weight begin", Stage.LOAD),
    ("KV Cache is allocated", Stage.KV_POOL),
    ("JIT Pre-Comp", Stage.JIT),
    ("DeepGEMM warmup", Stage.JIT),
    ("flashinfer.jit", Stage.JIT),
    ("UDA graph begin", Stage.GRAPH_CAPTURE),
    ("uda graph begin", Stage.GRAPH_CAPTURE),
    ("Capturing batches", Stage.GRAPH_CAPTURE),
    ("Capturing num tokens", Stage.GRAPH_CAPTURE),
    ("Engine startup timings", Stage.WARMUP),
    ("Started server process", Stage.WARMUP),
    ("Uvicorn running on", Stage.WARMUP),
    # The server's own warm-up or our probe: either way tokens were made.
    ('"POST /generate HTTP/1.1" 200', Stage.READY),
    ("The server is fired up and ready to roll", Stage.READY),
    ("SIGTERM received", Stage.SHUTDOWN),
    ("Gracefully exiting", Stage.SHUTDOWN),
    ("INFO:     Shutting down", Stage.SHUTDOWN),
    ("Waiting for application shutdown", Stage.SHUTDOWN),
)
#: Stages that a start may enter in another order than drawn: an older version captures the
#: target's graphs before it loads the draft, and kernels compile in between.
_MOVABLE = frozenset({Stage.DRAFT_LOAD, Stage.KV_POOL, Stage.JIT, Stage.GRAPH_CAPTURE})
_FREE = re.compile(r"avail mem=([\d.]+) GB")
_BAR = re.compile(r"\|\s*(\d+)/(\d+) \[")
_TIMING = re.compile(r"(?:(\w+)=\{)?(\w+)=([\d.]+)(\})?")


def is_past(stage: Stage, mark: Stage) -> bool:
    """Tell whether a server at `stage` has reached `mark`."""
    return _ORDER[stage] >= _ORDER[mark]


class StageTracker:
    """The stage of one server.

    Attributes:
        stage: The stage that the server has reached.
        progress: Steps done and to do of the current stage's bar; None without one.
        free_gb: Rank -> free GPU memory before its first load, and after its last one.
    """

    def __init__(self) -> None:
        self.stage = Stage.ARGS
        self.progress: tuple[int, int] | None = None
        self.free_gb: dict[str, tuple[float, float]] = {}
        self._loads: dict[str, int] = {}

    def take(self, rank: str, text: str) -> None:
        """Take one line of a rank."""
        for words, stage in _MARKS:
            if words in text:
                if stage is Stage.LOAD:
                    self._begin_load(rank, text)
                else:
                    self._enter(stage)
                break
        if "Load weight end" in text:
            self._note_free(rank, text)
        bar = _BAR.search(text) if "it/s" in text or "s/it" in text else None
        if bar:
            self.progress = (int(bar[1]), int(bar[2]))

    def serve(self) -> None:
        """Note that a batch was run: after the server's own warm-up these are requests."""
        if self.stage is Stage.READY:
            self._enter(Stage.SERVING)

    def _enter(self, stage: Stage) -> None:
        is_start = not is_past(self.stage, Stage.WARMUP)
        # A web server that could not take its port shuts down too: that is no orderly end.
        is_early = stage is Stage.SHUTDOWN and not is_past(self.stage, Stage.READY)
        if stage is self.stage or is_early:
            return
        if _ORDER[stage] > _ORDER[self.stage] or (is_start and stage in _MOVABLE):
            self.stage, self.progress = stage, None

    def _begin_load(self, rank: str, text: str) -> None:
        if rank not in self._loads and len(self._loads) >= _MOST_RANKS:
            return
        self._loads[rank] = self._loads.get(rank, 0) + 1
        self._note_free(rank, text)
        self._enter(Stage.DRAFT_LOAD if self._loads[rank] > 1 else Stage.LOAD)

    def _note_free(self, rank: str, text: str) -> None:
        free = _FREE.search(text)
        if free and rank in self._loads:
            before, _ = self.free_gb.get(rank, (float(free[1]), 0.0))
            self.free_gb[rank] = (before, float(free[1]))


def read_timings(text: str) -> dict[str, float]:
    """Read `a=1.0, group={b=2.0, c=3.0}, d=4.0` as a, group_b, group_c, d; seconds."""
    found: dict[str, float] = {}
    group = ""
    for opened, name, value, closed in _TIMING.findall(text.partition(":")[2]):
        group = opened or group
        found[f"{group}_{name}" if group else name] = float(value)
        if closed:
            group = ""
    return found
