"""The entry point: called by SGLang in the process that starts a server and in its children.

SGLang loads plugins before it reads its arguments, and swallows what a plugin raises unless it
is a SystemExit. So the version is judged at once, and the setting where SGLang checks its
arguments, before it starts a process; a scheduler judges both again.
"""

import multiprocessing
import os
import sys
from typing import Any

from sweeper.draft_tp import versions
from sweeper.draft_tp.plan import VARIABLE, Plan, Refused, check_architecture, decide
from sweeper.draft_tp.plan import draft_architecture as architecture_of

_SETTINGS = (
    "attn_dp_size",
    "enable_dp_attention",
    "enable_multi_layer_eagle",
    "nnodes",
    "pp_size",
    "speculative_adaptive",
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_token_map",
    "speculative_use_block_verification",
    "speculative_use_rejection_sampling",
    "tp_size",
)


def activate() -> None:
    """Register the hooks of this process, if SWEEPER_DRAFT_TP is set.

    Raises:
        SystemExit: This SGLang has not the places that the plugin changes.
    """
    if not os.environ.get(VARIABLE, "").strip():
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    style = _style()
    if multiprocessing.parent_process() is None:
        HookRegistry.register(versions.CHECK, _check, HookType.AFTER)
    elif versions.SCHEDULER.rpartition(".")[0] in sys.modules:

        def install(_scheduler: Any, server_args: Any, *_: Any, **__: Any) -> None:
            plan = _plan(server_args)
            if plan is not None:
                from sweeper.draft_tp.hooks import DraftTP

                DraftTP(plan, style).install()

        HookRegistry.register(f"{versions.SCHEDULER}.__init__", install, HookType.BEFORE)


def _style() -> versions.Style:
    from sglang.version import __version__

    try:
        return versions.choose(str(__version__), versions.installed_source)
    except Refused as refused:
        raise SystemExit(f"sweeper draft TP: {refused}") from None


def _check(_result: object, server_args: Any, *_: Any, **__: Any) -> None:
    """Refuse a setting before any process is started."""
    _plan(server_args)


def _plan(server_args: Any) -> Plan | None:
    settings = {name: getattr(server_args, name, None) for name in _SETTINGS}
    plan = decide(os.environ, settings)
    if plan is not None:
        path = settings["speculative_draft_model_path"]
        check_architecture(architecture_of(path if isinstance(path, str) else None))
    return plan
