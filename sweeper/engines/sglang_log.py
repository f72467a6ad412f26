"""Reads an SGLang log as it grows: stages, the cause of an end, and the decode lines.

    bytes -> lines (cut at line feeds, returns and time stamps; a long line keeps head and tail)
          -> stage marks       how far the server has come
          -> signs             the best explanation so far, by weight and then by order
          -> decode lines      accept length, throughput, share without CUDA graph

Memory is constant: one pending line, one explanation, some counters. Several ranks write into
one log. A rank that dies takes the others with it, so the first traceback may be a consequence;
causes outweigh consequences, and a fatal traceback outweighs what a server survived.
"""

import copy
import re
from dataclasses import dataclass

from sweeper.engines.base import Ending
from sweeper.engines.sglang_decode import DecodeLines, DecodeWindow
from sweeper.engines.sglang_lines import LineCutter, bare_text
from sweeper.engines.sglang_signs import (
    NOISE,
    Role,
    classify_exception,
    exception_type,
    held_by_others,
    is_another_way,
    may_fail,
    never_fits,
    read_sign,
)
from sweeper.engines.sglang_stages import StageTracker, is_past, read_timings
from sweeper.errors import Failure, FailureClass, Stage
from sweeper.redaction import redact_text

_MOST_NOTICES = 20
_LINE_CHARS = 400
#: A longer line is compared with the signs at its two ends only: searching takes time that may
#: grow with the square of the length.
_SIGN_CHARS = 4000

#: Functions in a traceback that tell the stage of their own rank better than the last mark.
_FRAMES: tuple[tuple[str, Stage], ...] = (
    ("init_torch_distributed", Stage.DIST_INIT),
    ("load_model", Stage.LOAD),
    ("alloc_memory_pool", Stage.KV_POOL),
    ("init_memory_pool", Stage.KV_POOL),
    ("_capture_cuda_graphs", Stage.GRAPH_CAPTURE),
    ("init_cuda_graphs", Stage.GRAPH_CAPTURE),
    ("init_device_graphs", Stage.GRAPH_CAPTURE),
)
_FRAME = re.compile(r'^\s+File ".*", line \d+, in (\w+)')
_NOTICE = re.compile(r"is reset to|is adjusted to|is disabled (because|for|due)|is overridden")
_CHILD_FAILED = ("Received sigquit from a child", "SIGQUIT received", "Triggering SIGQUIT")
_CHAINED = ("During handling of the above", "The above exception was the direct cause")
#: Weights of explanations: the lowest counts, and of equal ones the first.
_FATAL = 0
_REJECTED = 2
_WEIGHTS = {Role.CAUSE: 1, Role.CONSEQUENCE: 3, Role.ECHO: 4, Role.OFTEN_HANDLED: 5}
_UNEXPLAINED = 6
_FATAL_ROLES = frozenset({Role.CAUSE, Role.OFTEN_HANDLED})
#: What a person's or a program's stop looks like, not a failure.
_INTERRUPTS = frozenset({"KeyboardInterrupt", "SystemExit", "CancelledError"})
_SIGNALS = frozenset({-1, -2, -9, -15})


@dataclass(frozen=True, slots=True)
class _Explanation:
    weight: int
    kind: FailureClass
    stage: Stage
    line: str
    #: The class, where `kind` is a guess that others held memory and they did not.
    if_free: FailureClass | None = None


class SGLangLogReader:
    """Reads one server's log; satisfies `engines.base.LogReader`.

    Attributes:
        startup_s: Seconds of each part of the start, as the server itself says; empty before.
        speculating: Whether the server speculates; None until the log says.
        notices: Lines in which the server says that it changed a setting.
    """

    def __init__(self) -> None:
        self.startup_s: dict[str, float] = {}
        self.speculating: bool | None = None
        self.notices: tuple[str, ...] = ()
        self._cutter = LineCutter()
        self._start = StageTracker()
        self._decode = DecodeLines()
        self._best: _Explanation | None = None
        self._last_line = ""
        self._in_traceback = False
        self._is_fatal = False
        self._frame_stage: Stage | None = None
        self._frame_is_draft = False
        self._source = ""
        self._child_failed = False
        self._is_unbalanced = False

    @property
    def stage(self) -> Stage:
        """The stage that the server has reached."""
        return self._start.stage

    @property
    def progress(self) -> tuple[int, int] | None:
        """Steps done and to do of the current stage's bar; None without one."""
        return self._start.progress

    @property
    def decode(self) -> DecodeWindow:
        """What the decode lines said so far."""
        return self._decode.window()

    @property
    def accept_length_mean(self) -> float | None:
        """Mean accept length over the decode lines; None without speculation."""
        return self._decode.window().accept_length_mean

    @property
    def share_without_graph(self) -> float | None:
        """Share of the decode lines without a CUDA graph; None if no line says."""
        return self._decode.window().share_without_graph

    @property
    def retractions(self) -> int:
        """Requests that were sent back because the KV pool was full."""
        return self._decode.retractions

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the log, cut anywhere."""
        for line in self._cutter.feed(data):
            self._take(line)

    def failure(self, ending: Ending) -> Failure | None:
        """Return why the server ended, or None for a healthy end or a living server.

        Memory failures count as the machine's where other processes held the GPU, and as the
        setting's, whatever the log suggests, where the owner knows that nobody did. A kill by
        the owner before the server was ready is a start that took too long; one later is a
        healthy end, unless a rank had died before.
        """
        end = copy.copy(self)
        end._start, end._decode = copy.deepcopy((self._start, self._decode))
        end._cutter = LineCutter()
        for line in self._cutter.rest():
            end._take(line)
        found = end._explain(ending)
        if found is None:
            return None
        kind, line = found.kind, found.line
        if kind in {FailureClass.OOM, FailureClass.KV_POOL_TOO_SMALL} and ending.held_by:
            kind, line = FailureClass.GPU_MEMORY_NOT_FREE, f"{ending.held_by[0]}; {line}"
        elif kind is FailureClass.GPU_MEMORY_NOT_FREE and ending.held_by == ():
            kind = found.if_free or kind
        return Failure(
            kind=kind,
            stage=found.stage,
            line=redact_text(line)[:_LINE_CHARS],
            exit_code=ending.exit_code,
        )

    def _explain(self, ending: Ending) -> _Explanation | None:
        best, code = self._best, ending.exit_code
        if best is not None and self._child_failed:
            return best
        is_ready, is_over = is_past(self.stage, Stage.READY), self.stage is Stage.SHUTDOWN
        lives = code is None and not ending.killed_by_us
        if best is not None and not lives:
            was_told = ending.killed_by_us or code in _SIGNALS
            was_survived = was_told and (
                best.weight >= _WEIGHTS[Role.OFTEN_HANDLED] or best.kind is FailureClass.UNKNOWN
            )
            was_orderly = is_over or (is_ready and (code == 0 or ending.killed_by_us))
            if not (was_orderly or was_survived):
                return best
        if ending.foreign_on_port:
            return self._own(FailureClass.FOREIGN_SERVER, "another server answers on the port")
        if ending.killed_by_us and not is_ready:
            return self._own(FailureClass.START_TIMEOUT, self._last_line)
        if lives or ending.killed_by_us or is_over or (code == 0 and is_ready):
            return None
        if code in _SIGNALS and not self._child_failed:
            return self._own(FailureClass.KILLED, f"ended by signal {-code}: {self._last_line}")
        return self._own(FailureClass.UNKNOWN, self._last_line or f"no log, exit status {code}")

    def _own(self, kind: FailureClass, line: str) -> _Explanation:
        return _Explanation(9, kind, self.stage, line)

    def _take(self, line: str) -> None:
        rank, text = bare_text(line)
        if not text.strip():
            return
        if self._decode.take(text):
            self._start.serve()
            self._in_traceback = False
            return
        if text[0].isspace() and not text.startswith("  what(): "):
            if self._in_traceback:
                self._read_frame(text)
            return
        if "NCCL INFO" in text:
            return
        if NOISE.search(text) is None:
            self._last_line = text[:_LINE_CHARS]
        self._start.take(rank, text)
        self._read_notices(text)
        if "server_args=" in text:
            self._read_arguments(text)
        elif "Traceback (most recent call last)" in text:
            self._begin_traceback(text)
        elif text.startswith(_CHAINED):
            self._in_traceback = False
        else:
            self._read_signs(text if len(text) < _SIGN_CHARS else _two_ends(text))

    def _read_notices(self, text: str) -> None:
        if "Engine startup timings" in text:
            self.startup_s = read_timings(text)
        elif any(words in text for words in _CHILD_FAILED):
            # A server that ends its processes may take that for their crash.
            self._child_failed |= self.stage is not Stage.SHUTDOWN
        elif "memory capacity is unbalanced" in text:
            self._is_unbalanced = True
        elif _NOTICE.search(text) and len(self.notices) < _MOST_NOTICES:
            self.notices = tuple(dict.fromkeys((*self.notices, text[:_LINE_CHARS])))

    def _read_arguments(self, text: str) -> None:
        # 0.5.23 prints a dict, older versions a call.
        match = re.search(r"speculative_algorithm(?:=|': )('?)(\w+)", text)
        if match:
            self.speculating = match[2] != "None"

    def _begin_traceback(self, text: str) -> None:
        is_chain = self._source != "" and not self._in_traceback
        self._is_fatal = "hit an exception" in text or (is_chain and self._is_fatal)
        self._in_traceback = True
        self._child_failed |= self._is_fatal
        self._frame_stage, self._frame_is_draft, self._source = None, False, ""

    def _read_frame(self, text: str) -> None:
        frame = _FRAME.match(text)
        if frame is None:
            if not text.strip(" ^~"):
                return
            self._source = text.strip()
            return
        self._frame_is_draft |= "draft" in frame[1]
        for name, stage in _FRAMES:
            if frame[1].startswith(name):
                self._frame_stage = stage

    def _read_signs(self, text: str) -> None:
        ended_traceback, self._in_traceback = self._in_traceback, False
        name = exception_type(text, in_traceback=ended_traceback)
        is_fatal = ended_traceback and self._is_fatal
        shown, stage = text, self.stage
        if ended_traceback and name is not None:
            stage = self._stage_of_frames()
            if not text.partition(":")[2].strip():
                shown = f"{self._source} ({text.rstrip(': ')})"
        if name in _INTERRUPTS or not (may_fail(shown) or (ended_traceback and name)):
            return
        sign = read_sign(shown, speculating=self.speculating)
        if sign is not None and name is None and is_another_way(sign, shown):
            return
        if sign is not None:
            weight = _FATAL if is_fatal and sign.role in _FATAL_ROLES else _WEIGHTS[sign.role]
            self._propose(weight, sign.kind, sign.stage or stage, shown)
        elif name is not None:
            known = is_fatal or not is_past(stage, Stage.DIST_INIT)
            kind = classify_exception(name, shown, stage, speculating=self.speculating)
            if not known:
                kind = FailureClass.UNKNOWN
            if not known:
                weight = _UNEXPLAINED
            elif kind is FailureClass.UNKNOWN:
                weight = _WEIGHTS[Role.CONSEQUENCE]
            else:
                weight = _REJECTED
            self._propose(weight, kind, stage, shown)

    def _stage_of_frames(self) -> Stage:
        stage = self._frame_stage
        if stage is None or is_past(self.stage, Stage.WARMUP):
            return self.stage
        return Stage.DRAFT_LOAD if stage is Stage.LOAD and self._frame_is_draft else stage

    def _propose(self, weight: int, kind: FailureClass, stage: Stage, line: str) -> None:
        if self.stage is Stage.SHUTDOWN or (self._best and self._best.weight <= weight):
            return
        if_free: FailureClass | None = None
        if kind in {FailureClass.OOM, FailureClass.KV_POOL_TOO_SMALL}:
            # Before its own weights a server needs next to nothing.
            is_early = kind is FailureClass.OOM and stage is Stage.DIST_INIT
            if is_early or self._is_unbalanced or held_by_others(line, self._start.free_gb):
                if_free = FailureClass.OOM if never_fits(line) else kind
                kind = FailureClass.GPU_MEMORY_NOT_FREE
        if kind is FailureClass.NCCL_INIT and is_past(self.stage, Stage.READY):
            kind = FailureClass.NCCL_TIMEOUT
        self._best = _Explanation(weight, kind, stage, line, if_free)


def _two_ends(text: str) -> str:
    return f"{text[: _SIGN_CHARS // 2]} ... {text[-_SIGN_CHARS // 2 :]}"
