"""What the lines of an SGLang log mean: signs of failures, as data.

A sign is a pattern over one line and the class it shows. Some signs are causes (out of memory);
others are what the other ranks say once one has died (a collective that times out), and count
only where no cause is found. Patterns are words of SGLang's and PyTorch's messages, taken from
real logs, public reports and the sources of 0.5.15 and 0.5.23.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from sweeper.errors import FailureClass, Stage

_F = FailureClass


class Role(Enum):
    """What a sign explains: the end, or only that another rank had ended."""

    CAUSE = auto()
    #: Servers survive it where they have another way, so it counts only where it was fatal.
    OFTEN_HANDLED = auto()
    #: Follows where a rank stands still or dies, and may stand alone.
    CONSEQUENCE = auto()
    #: Follows where a rank is gone.
    ECHO = auto()


@dataclass(frozen=True, slots=True)
class Sign:
    """A pattern and what it shows.

    Attributes:
        kind: The class of the failure.
        pattern: Searched in one line, without regard to case.
        role: How much it explains.
        stage: Where it happens, if it always happens there.
        needs_speculation: Whether it shows this only if the server may be speculating.
    """

    kind: FailureClass
    pattern: str
    role: Role = Role.CAUSE
    stage: Stage | None = None
    needs_speculation: bool = False


#: The first that matches a line counts: the more telling stand further up.
SIGNS: tuple[Sign, ...] = (
    Sign(
        _F.BAD_FLAG,
        # A word before it makes it an exception's name: "TypeError: argument of type ...".
        r"(?<!\w)error: (unrecognized arguments|argument |ambiguous option|"
        r"the following arguments|one of the arguments)",
        stage=Stage.ARGS,
    ),
    # What `sweeper.draft_tp` refuses; a round in which the ranks disagree is another thing.
    Sign(_F.UNSUPPORTED_CONFIG, r"sweeper draft TP: (?!in round)|draft_tp\.plan\.Refused: "),
    Sign(
        _F.KV_POOL_TOO_SMALL,
        r"not enough memory\. please try to increase --mem-fraction-static|"
        r"leaves? no GPU memory for the KV cache",
        stage=Stage.KV_POOL,
    ),
    Sign(_F.KV_POOL_TOO_SMALL, r"out of memory\. (please )?try to lower your batch size"),
    Sign(
        _F.GPU_MEMORY_NOT_FREE,
        r"error: .*the memory capacity is unbalanced|"
        r"CUDA-capable device\(s\) is/are busy or unavailable|cudaErrorDevicesUnavailable",
    ),
    Sign(
        _F.OOM,
        r"(capture|capturing) cuda graph.* failed.*out of memory",
        stage=Stage.GRAPH_CAPTURE,
    ),
    Sign(
        _F.OOM,
        r"(CUDA|HIP|GPU) out of memory|cuda (error|failure).*out of memory|"
        r"\bOutOfMemoryError\b|CUDA_ERROR_OUT_OF_MEMORY|"
        r"cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED",
    ),
    Sign(
        _F.PORT_CONFLICT,
        r"EADDRINUSE|address already in use|error while attempting to bind on address|"
        r"port(_base)? at \d+ is not available|port (\d+ )?is (already )?(in use|not available)|"
        r"is used by a process already",
    ),
    Sign(
        _F.BUILD_MISSING,
        r"no kernel image is available|undefined symbol|cannot open shared object file|"
        r"driver version is insufficient|found no NVIDIA driver|not compiled with CUDA|"
        r"no accelerator \(|nvcc.{0,20}not found|CUDA_HOME environment variable is not set|"
        r"ninja is required|failed to find C compiler",
    ),
    Sign(
        _F.BUILD_MISSING,
        r"no module named|\bImportError: |(error|exception): .*\bis not installed",
        role=Role.OFTEN_HANDLED,
    ),
    Sign(
        _F.MODEL_MISSING,
        r"repo id must be in the form|is not a valid model identifier|"
        r"(does not|doesn't) appear to have (a file|files) named|"
        r"can('t|not) (load the configuration of|find any model weights)|"
        r"can't load tokenizer|unrecognized model in|couldn't connect to .*huggingface|"
        r"LocalEntryNotFoundError|RepositoryNotFoundError|"
        r"GatedRepoError|OfflineModeIsEnabled|SafetensorError|error while deserializing header|"
        r"(no such file or directory|permission denied): .*"
        r"(config\.json|model|tokenizer|\.safetensors|\.bin\b)",
    ),
    Sign(
        _F.DRAFT_INCOMPATIBLE,
        r"draft model to share the same vocabulary|different token-to-id mappings|"
        r"has no attribute '?(set_embed|hot_token_id)|\bset_embed\b|"
        r"hot_token_id.*(missing|none|attribute)|"
        r"draft.*(vocab|hidden).*(mismatch|does not match|must match)",
    ),
    Sign(
        _F.UNSUPPORTED_CONFIG,
        r"sizes of tensors must match except in dimension|out of resources?: shared memory|"
        r"has no attribute '?set_eagle3_layers|is not supported in (the )?(decode|prefill|draft)|"
        r"(not supported|unsupported) .*(backend|attention)|"
        r"only support(s|ed) (topk|on|for|on Blackwell)|backend .*requires (Hopper|Blackwell)",
    ),
    Sign(
        _F.DRAFT_INCOMPATIBLE,
        r"the size of tensor a \(\d+\) must match|shapes cannot be multiplied|"
        r"the expanded size of the tensor \(\d+\) must match|"
        r"size mismatch for .*(draft|eagle)",
        needs_speculation=True,
    ),
    Sign(
        _F.UNKNOWN,
        r"uncorrectable (ECC|NVLink)|system not yet initialized|fallen off the bus|\bXid\b|"
        r"CUDA error: (unknown error|initialization error|no CUDA-capable device|"
        r"invalid device ordinal|system has unsupported display driver)|"
        r"or a hardware error|hardware stack error",
    ),
    Sign(
        _F.CRASH_KERNEL,
        r"illegal memory access|device-side assert|misaligned address|illegal instruction|"
        r"unspecified launch failure|cudaErrorLaunchFailure|CUDA error:|failed: cuda error|"
        r"CUBLAS_STATUS_(EXECUTION_FAILED|NOT_SUPPORTED|INTERNAL_ERROR|INVALID_VALUE)|"
        r"CUDNN_STATUS_|triton error \[CUDA\]|PTX codegen error|"
        r"failed with error code|PassManager::run failed|"
        r"fatal python error|segmentation fault",
    ),
    Sign(
        _F.CONFIG_REJECTED,
        r"is not divisible by|must be divisible by|unknown speculative algorithm name|"
        r"pipeline parallelism (is not compatible|currently only)",
    ),
    Sign(_F.UNSUPPORTED_CONFIG, r"no algorithm/protocol available for function"),
    # NCCL's word for a call that it will never take: NCCL_ALGO, NCCL_PROTO, two ranks on one GPU.
    Sign(
        _F.UNSUPPORTED_CONFIG,
        r"NCCL error.*\binvalid usage|ncclInvalidUsage",
        role=Role.CONSEQUENCE,
    ),
    Sign(
        _F.NCCL_TIMEOUT,
        r"collective operation timeout|watchdog caught|NCCL work.*timeout|"
        r"ProcessGroupNCCL.*(timed out|timeout)",
        role=Role.CONSEQUENCE,
    ),
    Sign(
        _F.NCCL_INIT,
        r"NCCL error|DistBackendError|DistNetworkError|DistStoreError|"
        r"nccl(System|Internal|Remote|UnhandledCuda)Error|"
        r"unhandled (system|cuda) error|gloo connectFullMesh failed|"
        r"timed out after .*waiting for clients|TCPStore.*(timed out|timeout)",
        role=Role.CONSEQUENCE,
    ),
    Sign(
        _F.NCCL_TIMEOUT,
        r"connection (reset|closed) by (remote )?peer|broken ?pipe|remote process exited",
        role=Role.ECHO,
    ),
    Sign(_F.WATCHDOG, r"watchdog timeout(?!.*soft=True)", role=Role.CONSEQUENCE),
    Sign(
        _F.KILLED,
        r"(died during initialization \(exit code: |crashed with exit code )-(9|15)\b",
        role=Role.CONSEQUENCE,
    ),
    Sign(
        _F.CRASH_KERNEL,
        r"(died during initialization \(exit code: |crashed with exit code )-?\d+|"
        r"capture cuda graph failed|fail when using backend: .* for prefill runner",
        role=Role.CONSEQUENCE,
    ),
)

_COMPILED = tuple((sign, re.compile(sign.pattern, re.IGNORECASE)) for sign in SIGNS)

#: Every sign's line holds one of these; looking for them is what most lines of a log cost.
# fmt: off
_HOT = (
    "error", "fail", "memory", "exception", "assert", "timeout", "timed out", "no module",
    "no kernel", "no accelerator", "no nvidia driver", "in use", "used by a process",
    "not available", "is missing", "symbol", "shared object", "insufficient",
    "compiled with cuda", "not found", "not set", "ninja", "compiler", "not installed", "repo id",
    "identifier", "appear to have", "can't", "cannot", "couldn't", "offline", "no such file",
    "permission denied", "vocabulary", "mappings", "draft", "set_embed", "hot_token_id",
    "attribute", "must match", "out of resource", "not supported", "unsupported", "only support",
    "requires", "multiplied", "mismatch", "illegal", "misaligned", "unspecified launch",
    "status_", "segmentation", "divisible", "unknown speculative", "pipeline parallelism",
    "watchdog", "unhandled", "died during", "crashed",
    "uncorrectable", "initialized", "the bus", "xid", "by peer", "by remote peer", "pipe",
    "remote process", "unrecognized", "expanded size",
)
# fmt: on

#: Classes of what an engine cannot do, which it also says where it can do without.
_OF_A_CHOICE = frozenset({_F.UNSUPPORTED_CONFIG, _F.CONFIG_REJECTED})
_SAYS_ERROR = re.compile(r"(?i)\berrors?\b|exception|sweeper draft TP")

#: Lines that healthy servers print too, and the side errors of a crash dump.
NOISE = re.compile(
    r"ignore import error|warning:|\bwarning\b|NCCL INFO|py-?spy|RLIMIT_NOFILE|autotun|"
    r"skipping tactic|#retracted|retract requests|leaked \w+ objects|is in use\. waiting for|"
    r"could not find the process that uses it|"
    r"possible solutions|common cause is|health check failed|\) disabled: ",
    re.IGNORECASE,
)
#: A noise word in an exception's own line is no noise.
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?(?P<type>\w*(?:Error|Exception|Exit|Interrupt))(?::|$)"
)
_ANY_NAME = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?(?P<type>[A-Za-z_]\w*)(?::|$)")
_ENDED_CHILD = re.compile(r"died during initialization \(exit code")

_CAPACITY = re.compile(r"total capacity of ([\d.]+) (GiB|MiB)")
_OTHER_PROCESS = re.compile(r"Process \d+ has ([\d.]+) (GiB|MiB)")
_THIS_PROCESS = re.compile(r"this process has ([\d.]+) (GiB|MiB)")
_VIABLE = re.compile(r"--mem-fraction-static above ([\d.]+)")
#: Above this share of a GPU, memory that is not ours is a server's and not a context's.
_HELD_SHARE = 0.05
#: A fraction from here on leaves no room for anything: the weights alone cannot need it, since
#: they would not have loaded.
_NOTHING_VIABLE = 0.98
#: More than drafts, graphs and rounding take between the load and the pool.
_UNEXPLAINED_SHARE = 0.25


def exception_type(line: str, *, in_traceback: bool = False) -> str | None:
    """Return the name of the exception whose last line this is, without its module.

    Outside a traceback a name counts only if it ends like one of an exception.
    """
    match = (_ANY_NAME if in_traceback else _EXCEPTION).match(line)
    return match["type"] if match else None


def may_fail(line: str) -> bool:
    """Tell cheaply whether a line is worth comparing with the signs."""
    low = line.lower()
    if not any(word in low for word in _HOT):
        return False
    if NOISE.search(line) is None:
        return True
    return exception_type(line) is not None or _ENDED_CHILD.search(line) is not None


def read_sign(line: str, *, speculating: bool | None) -> Sign | None:
    """Return the sign that a line shows.

    Args:
        line: One line without timestamp and colours.
        speculating: Whether the server speculates; None if the log did not say.
    """
    for sign, pattern in _COMPILED:
        if pattern.search(line):
            if sign.needs_speculation and speculating is False:
                continue
            return sign
    return None


def is_another_way(sign: Sign, line: str) -> bool:
    """Tell whether a line that is no exception's says only that a healthy server goes another way.

    "Page first layout is not supported with direct IO backend, switching to ..." is one.
    """
    return sign.kind in _OF_A_CHOICE and _SAYS_ERROR.search(line) is None


def classify_exception(
    name: str, line: str, stage: Stage, *, speculating: bool | None
) -> FailureClass:
    """Return the class of a fatal exception that no sign knows, by its type and stage."""
    low = line.lower()
    if stage is Stage.DRAFT_LOAD and speculating is not False:
        return _F.DRAFT_INCOMPATIBLE
    if name == "NotImplementedError" or any(
        words in low for words in ("not supported", "only support", "does not support")
    ):
        return _F.UNSUPPORTED_CONFIG
    if name in {"AssertionError", "ValueError"}:
        return _F.CONFIG_REJECTED
    if name == "TypeError" and stage in {Stage.ARGS, Stage.IMPORT}:
        # A flag that should have come with others: "'>' not supported between NoneType and int".
        return _F.CONFIG_REJECTED
    return _F.UNKNOWN


def held_by_others(line: str, free_gb: Mapping[str, tuple[float, float]]) -> bool:
    """Tell whether a memory failure's line shows that other processes held the GPU.

    Args:
        line: The line of the failure.
        free_gb: Rank -> free memory before its first load began, and after its last one ended.
    """
    viable = _VIABLE.search(line)
    if viable is not None:
        fraction = float(viable[1].rstrip("."))
        loaded = [1 - after / before for before, after in free_gb.values() if before > 0]
        unexplained = bool(loaded) and fraction - max(loaded) > _UNEXPLAINED_SHARE
        return fraction >= _NOTHING_VIABLE or unexplained
    capacity = _CAPACITY.search(line)
    if capacity is None:
        return False
    total_gb = _gib(capacity)
    others = sorted(_gib(m) for m in _OTHER_PROCESS.finditer(line))
    if _THIS_PROCESS.search(line) is None and others:
        # Inside a container the driver's process numbers are the host's, so the failing process
        # is one of these; the largest is taken for it.
        others.pop()
    if sum(others) > _HELD_SHARE * total_gb:
        return True
    before = [first for first, _ in free_gb.values()]
    # A rank's context and communicators take a few per cent before its load begins.
    return bool(before) and min(before) < 0.8 * total_gb


def never_fits(line: str) -> bool:
    """Tell whether a memory failure's line asks for more than the whole GPU."""
    viable = _VIABLE.search(line)
    return viable is not None and float(viable[1].rstrip(".")) >= _NOTHING_VIABLE


def _gib(match: re.Match[str]) -> float:
    return float(match[1]) / (1024 if match[2] == "MiB" else 1)
