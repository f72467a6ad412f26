"""Decides from the environment and the server's arguments what TP size the draft gets. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: The draft's TP size; a divisor of the target's.
VARIABLE = "SWEEPER_DRAFT_TP"
#: Set to 1, draft tokens that differ between ranks are an error, not only counted.
STRICT = "SWEEPER_DRAFT_TP_STRICT"
#: Algorithms whose draft is built and run by SGLang's `EagleDraftWorker`.
SUPPORTED = frozenset({"EAGLE", "EAGLE3", "NEXTN"})
#: Without a draft model there is nothing to place.
_NO_DRAFT_MODEL = frozenset({"", "NONE", "NGRAM"})
#: Model classes of SGLang whose tables `sharing.py` knows; subclasses of them count too.
DRAFT_MODELS = ("LlamaForCausalLMEagle", "LlamaForCausalLMEagle3")
#: What SGLang takes for one of these: older EAGLE checkpoints name the plain class.
_DRAFT_ARCHITECTURES = frozenset({*DRAFT_MODELS, "LlamaForCausalLM"})
_SWITCHES = {
    "enable_dp_attention": "data-parallel attention gives the draft a group of its own already",
    "enable_multi_layer_eagle": "multi-layer EAGLE has one draft model a step",
    "speculative_adaptive": "adaptive speculation changes the draft's shape while it runs",
    # Block verification switches rejection sampling on by itself (0.5.23).
    "speculative_use_block_verification": "block verification draws draft tokens on each rank",
    "speculative_use_rejection_sampling": "rejection sampling draws draft tokens on each rank",
}
_COUNTS = {
    "pp_size": "pipeline parallelism puts the draft on the last stage alone",
    "nnodes": "the groups are made on one node",
    "attn_dp_size": "data-parallel attention gives the draft a group of its own already",
}


class Refused(Exception):
    """The draft cannot run at the TP size that was asked for; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A draft that is split over fewer GPUs than its target.

    Attributes:
        target_size: The target's TP size, 2 or more.
        draft_size: The draft's, a divisor of it and smaller.
        strict: Whether draft tokens that differ between ranks are an error.
    """

    target_size: int
    draft_size: int
    strict: bool = False

    def partition(self, ranks: list[int]) -> list[list[int]]:
        """Return the draft's groups of these ranks, neighbours together."""
        size = self.draft_size
        return [ranks[i : i + size] for i in range(0, len(ranks), size)]


def decide(environ: Mapping[str, str], settings: Mapping[str, object]) -> Plan | None:
    """Return the plan, or None where the draft is split as the target is, or there is none.

    Args:
        environ: The environment; only this module's two variables are read.
        settings: Server arguments by SGLang's names, with underscores. Missing ones have
            their defaults.

    Raises:
        Refused: The draft cannot have this size here.
    """
    asked = environ.get(VARIABLE, "").strip()
    algorithm = str(settings.get("speculative_algorithm") or "").upper()
    if not asked or algorithm in _NO_DRAFT_MODEL:
        return None
    target = _count(settings, "tp_size")
    if not asked.isdecimal() or int(asked) < 1 or target % int(asked):
        raise Refused(f"{VARIABLE} is {asked}, and must be 1 or a divisor of --tp-size {target}")
    if int(asked) == target:
        return None
    why = _unsupported(algorithm, settings)
    if why is not None:
        raise Refused(f"{VARIABLE}={asked} with --tp-size {target}: {why}")
    strict = environ.get(STRICT, "").strip() == "1"
    return Plan(target_size=target, draft_size=int(asked), strict=strict)


def draft_architecture(path: str | None) -> str | None:
    """Return what the `config.json` of a local checkpoint calls its model, or None."""
    try:
        config = json.loads(Path(path or "", "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    names = config.get("architectures") if isinstance(config, dict) else None
    return str(names[0]) if isinstance(names, list) and names else None


def check_architecture(name: str | None) -> None:
    """Refuse a draft model that is known not to be of the Llama type.

    Raises:
        Refused: It is another one.
    """
    if name is not None and name not in _DRAFT_ARCHITECTURES:
        raise Refused(
            f"{VARIABLE}: the draft is a {name}; a TP size of its own is made for "
            f"{' and '.join(DRAFT_MODELS)}"
        )


def _unsupported(algorithm: str, settings: Mapping[str, object]) -> str | None:
    if algorithm not in SUPPORTED:
        names = ", ".join(sorted(SUPPORTED))
        return f"--speculative-algorithm is {algorithm}, and must be one of {names}"
    for name, why in _SWITCHES.items():
        if settings.get(name) is True:
            return f"{_flag(name)} is set; {why}"
    for name, why in _COUNTS.items():
        if _count(settings, name) > 1:
            return f"{_flag(name)} is {settings[name]}; {why}"
    if settings.get("speculative_token_map") is not None and algorithm != "EAGLE3":
        return "--speculative-token-map picks rows of a head that is split over the target's GPUs"
    if not settings.get("speculative_draft_model_path"):
        return (
            "--speculative-draft-model-path is not given; a draft inside the target is not moved"
        )
    return None


def _count(settings: Mapping[str, object], name: str) -> int:
    value = settings.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 1


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
