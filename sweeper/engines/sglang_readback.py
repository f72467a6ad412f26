"""Reads `/server_info`: what a server says it runs, against what it was asked to run.

The answer is a flat object of all resolved arguments, with underscores, and some facts of the
run; 0.5.15, 0.5.17 and 0.5.23 differ only in what they add.
"""

import json
from collections.abc import Mapping, Sequence

from sweeper.engines import sglang_flags
from sweeper.errors import Failure, FailureClass, LaunchFailed, Stage
from sweeper.records import FlagValue, ServerFacts
from sweeper.redaction import redact_mapping

#: Flags that decide how fast a server is and that SGLang sets by itself, differently with and
#: without speculation: a comparison is fair only where they agree.
FAIRNESS = (
    "attention-backend",
    "chunked-prefill-size",
    "context-length",
    "cuda-graph-backend-decode",
    "cuda-graph-backend-prefill",
    "cuda-graph-bs-decode",
    "cuda-graph-config",
    "cuda-graph-max-bs-decode",
    "decode-attention-backend",
    "disable-cuda-graph",
    "disable-custom-all-reduce",
    "disable-decode-cuda-graph",
    "disable-overlap-schedule",
    "disable-prefill-cuda-graph",
    "disable-radix-cache",
    "dp-size",
    "dtype",
    "enable-mixed-chunk",
    "flashinfer-allreduce-fusion-backend",
    "kv-cache-dtype",
    "max-prefill-tokens",
    "max-running-requests",
    "max-total-tokens",
    "mem-fraction-static",
    "moe-runner-backend",
    "page-size",
    "prefill-attention-backend",
    "quantization",
    "sampling-backend",
    "schedule-policy",
    "speculative-algorithm",
    "speculative-draft-attention-backend",
    "speculative-eagle-topk",
    "speculative-num-draft-tokens",
    "speculative-num-steps",
    "stream-interval",
    "tp-size",
)
_TRUE, _FALSE = {"true", "yes", "on"}, {"false", "no", "off"}


def read(
    info: Mapping[str, object],
    *,
    model: str,
    asked: Mapping[str, FlagValue],
    draft_tp: str | None,
    port: int,
) -> ServerFacts:
    """Return the facts of a server's answer.

    Args:
        info: The JSON answer.
        model: Path or name of the model that was asked for.
        asked: Full flag name -> value that was asked for.
        draft_tp: The draft's own TP size that was asked for; None for the target's.
        port: The port that the server was told to take.

    Raises:
        LaunchFailed: Another server answered, or the draft TP had no effect.
    """
    _check_is_ours(info, model=model, port=port)
    _check_draft_tp(info, draft_tp)
    effective = {name: _as_flag(info[key]) for name, key in _keys(info, asked).items()}
    if effective.get("max-running-requests") is None:
        limit = _inner(info).get("effective_max_running_requests_per_dp")
        if isinstance(limit, int):
            effective["max-running-requests"] = limit
    rewritten = {
        name: (value, effective[name])
        for name, value in sorted(asked.items())
        if name in effective and not _agree(value, effective[name])
    }
    return ServerFacts(
        version=str(info.get("version") or "unknown"),
        flags=redact_mapping(effective),
        rewritten=rewritten,
        simulated=info.get("simulated") is True,
        time_scale=_positive(info.get("time_scale")) or 1.0,
        max_total_tokens=_pool_tokens(info),
    )


def _check_is_ours(info: Mapping[str, object], *, model: str, port: int) -> None:
    said_model, said_port = info.get("model_path"), info.get("port")
    if said_model is None:
        _reject(FailureClass.FOREIGN_SERVER, "the answer to /server_info names no model_path")
    if said_port is not None and str(said_port) != str(port):
        _reject(
            FailureClass.FOREIGN_SERVER,
            f"the server that answers on port {port} says it was started for port {said_port}",
        )
    if not _same_model(model, str(said_model)):
        _reject(
            FailureClass.FOREIGN_SERVER,
            f"the server on port {port} serves {said_model}, and {model} was started",
        )


def _same_model(asked: str, said: str) -> bool:
    if asked.rstrip("/") == said.rstrip("/"):
        return True
    if asked.startswith(("/", ".", "~")):
        return False
    # A hub's name comes back as a path of its cache: Hugging Face's snapshot, or a folder of
    # ModelScope's, in whose names a dot may be three underscores. Behind it a GGUF may be named,
    # as org/name:QUANT or org/name/FILE.
    owner, _, name = asked.partition("/")
    repo = (owner, name.partition("/")[0].partition(":")[0])
    parts = said.rstrip("/").split("/")
    return f"models--{'--'.join(repo)}" in parts or repo == tuple(
        part.replace("___", ".") for part in parts[-2:]
    )


def _check_draft_tp(info: Mapping[str, object], draft_tp: str | None) -> None:
    """Compare the draft's TP size with key `draft_tp_size`, which `sweeper.draft_tp` adds."""
    # With several data-parallel replicas only their own states have it.
    said = info.get("draft_tp_size", _inner(info).get("draft_tp_size"))
    if draft_tp is None or str(said) == draft_tp:
        return
    found = f"reports draft_tp_size {said}"
    if said is None:
        found = "does not report draft_tp_size; is sweeper installed beside its SGLang?"
    _reject(
        FailureClass.CONFIG_REJECTED,
        f"SWEEPER_DRAFT_TP={draft_tp} was asked for, but the server {found}",
    )


def _reject(kind: FailureClass, line: str) -> None:
    raise LaunchFailed(Failure(kind=kind, stage=Stage.READY, line=line))


def _keys(info: Mapping[str, object], asked: Mapping[str, FlagValue]) -> dict[str, str]:
    """Return each flag to be read -> its key in the answer, as far as it is there."""
    names = sorted({*FAIRNESS, *asked})
    known = sglang_flags.all_flags()
    keys = {n: known.get(n, {}).get("dest") or n.replace("-", "_") for n in names}
    return {name: key for name, key in keys.items() if key in info}


def _as_flag(value: object) -> FlagValue | None:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Sequence) and all(isinstance(v, str | int | float) for v in value):
        return tuple(value)
    return json.dumps(value, sort_keys=True, default=str)


def _agree(asked: FlagValue, effective: FlagValue | None) -> bool:
    if effective is None:
        return asked is False
    if isinstance(asked, tuple) or isinstance(effective, tuple):
        left = asked if isinstance(asked, tuple) else (asked,)
        right = effective if isinstance(effective, tuple) else (effective,)
        return len(left) == len(right) and all(map(_agree, left, right))
    if _plain(asked) == _plain(effective):
        return True
    return _is_part(_parsed(asked), _parsed(effective))


def _plain(value: object) -> object:
    """Return a value in one spelling: numbers as floats, words for switches as booleans."""
    if isinstance(value, bool):
        return value
    word = str(value).strip()
    if word.lower() in _TRUE | _FALSE:
        return word.lower() in _TRUE
    try:
        return float(word)
    except ValueError:
        return word.rstrip("/")


def _parsed(value: object) -> object:
    """Return what a JSON object written as text holds, or None for other text."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return None
    try:
        return json.loads(value)
    except ValueError:
        return None


def _is_part(asked: object, effective: object) -> bool:
    """Tell whether every leaf that was asked for is in the effective object."""
    if isinstance(asked, dict) and isinstance(effective, dict):
        return all(k in effective and _is_part(v, effective[k]) for k, v in asked.items())
    return asked is not None and asked == effective


def _pool_tokens(info: Mapping[str, object]) -> int | None:
    memory = _inner(info).get("memory_usage")
    inner = memory.get("token_capacity") if isinstance(memory, Mapping) else None
    for value in (info.get("max_total_num_tokens"), inner):
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _inner(info: Mapping[str, object]) -> Mapping[str, object]:
    """Return the first data-parallel rank's own state; empty if it is missing."""
    states = info.get("internal_states")
    first = states[0] if isinstance(states, list) and states else None
    return first if isinstance(first, Mapping) else {}


def _positive(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(str(value)) if is_number and float(str(value)) > 0 else None
