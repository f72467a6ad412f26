"""Where SGLang is changed, by version, and whether an installed SGLang has these places.

Signatures are read from source files, so that a server with the wrong SGLang is refused before
anything is loaded, and so that the released wheels can be checked where they cannot be imported.

A style is how a version keeps a draft apart from its target: up to 0.5.17 the worker enters
`draft_tp_context(group)`; 0.5.23 resolves a `DraftParallelLayout` once and enters that. Both were
read in the wheels, and both are run in the tests. A version in no list is taken where every
signature of one style is there, and refused where not.
"""

import ast
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sweeper.draft_tp.plan import VARIABLE, Refused

_SRT = "sglang.srt"
WORKER = f"{_SRT}.speculative.eagle_worker_v2.EagleDraftWorker"
SCHEDULER = f"{_SRT}.managers.scheduler.Scheduler"
CHECK = f"{_SRT}.server_args.ServerArgs.check_server_args"
POOL = f"{_SRT}.model_executor.pool_configurator.create_memory_pool_configurator"
TREE = f"{_SRT}.speculative.eagle_utils.build_tree_kernel_efficient"
VERIFY_INPUT = f"{_SRT}.speculative.eagle_worker_common.build_eagle_verify_input"
LAYOUT = f"{_SRT}.speculative.draft_parallel.resolve_draft_parallel_layout"
_STATE = f"{_SRT}.distributed.parallel_state"
_POOLS = ("memory_pool_config", "req_to_token_pool", "token_to_kv_pool_allocator")
_MODEL = f"{_SRT}.models.llama.LlamaForCausalLM"

#: Path of a function -> names that its parameters begin with. In every version.
_COMMON: Mapping[str, tuple[str, ...]] = {
    CHECK: ("self",),
    f"{WORKER}.__init__": ("self", "server_args", "gpu_id"),
    f"{WORKER}.alloc_memory_pool": ("self", *_POOLS),
    f"{WORKER}.init_lm_head": ("self",),
    f"{WORKER}.draft": ("self", "batch"),
    f"{SCHEDULER}.__init__": ("self", "server_args"),
    f"{SCHEDULER}.get_init_info": ("self",),
    f"{SCHEDULER}.get_internal_state": ("self", "recv_req"),
    f"{_STATE}.init_model_parallel_group": ("group_ranks", "local_rank", "backend"),
    f"{_MODEL}.set_embed": ("self", "embed"),
    f"{_MODEL}.set_embed_and_head": ("self", "embed", "head"),
}
_TREE_ARGUMENTS = ("bonus_tokens", "parent_list", "top_scores_index", "draft_tokens", "seq_lens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """One way of keeping draft and target apart.

    Attributes:
        name: `group` or `layout`.
        versions: Releases whose source was read.
        points: Path of a function -> names that its parameters begin with.
    """

    name: str
    versions: tuple[str, ...]
    points: Mapping[str, tuple[str, ...]]


STYLES: tuple[Style, ...] = (
    Style(
        name="layout",
        versions=("0.5.23",),
        points={
            **_COMMON,
            POOL: ("kvc",),
            LAYOUT: ("model_spec",),
            VERIFY_INPUT: (
                "batch",
                "draft_input",
                "parent_list",
                "top_scores_index",
                "draft_tokens",
            ),
            f"{_SRT}.speculative.spec_utils.draft_tp_context": ("layout",),
        },
    ),
    Style(
        name="group",
        versions=("0.5.15", "0.5.17"),
        points={
            **_COMMON,
            POOL: (),
            TREE: _TREE_ARGUMENTS,
            f"{_SRT}.speculative.spec_utils.draft_tp_context": ("tp_group",),
            f"{_STATE}.patch_tensor_parallel_group": ("tp_group",),
        },
    ),
)


def choose(version: str, source: Callable[[str], str | None]) -> Style:
    """Return the style of an SGLang.

    Args:
        version: Its version.
        source: Dotted module name -> its source text, None without one.

    Raises:
        Refused: It has the places of no style.
    """
    known = [style for style in STYLES if version in style.versions]
    wrong: dict[str, list[str]] = {}
    for style in known or STYLES:
        wrong[style.name] = differences(style, source)
        if not wrong[style.name]:
            return style
    nearest = min(wrong.values(), key=len)
    tested = ", ".join(sorted(v for style in STYLES for v in style.versions))
    raise Refused(
        f"{VARIABLE}: SGLang {version} is not one of those it is made for ({tested}), "
        f"and differs from them: {'; '.join(nearest)}"
    )


def differences(style: Style, source: Callable[[str], str | None]) -> list[str]:
    """Return what an SGLang lacks of a style, in words; empty where it has everything."""
    trees: dict[str, ast.Module | None] = {}
    found = []
    for path, expected in style.points.items():
        module, names = _split(path)
        if module not in trees:
            text = source(module)
            trees[module] = None if text is None else ast.parse(text)
        tree = trees[module]
        has = None if tree is None else _parameters(tree.body, names)
        if has is None:
            found.append(f"no {path}")
        elif has[: len(expected)] != expected:
            found.append(f"{path} takes ({', '.join(has)}), not ({', '.join(expected)}, ...)")
    return found


def installed_source(module: str) -> str | None:
    """Return the source of a module of this Python without importing the module itself."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin).read_text(encoding="utf-8")


def _split(path: str) -> tuple[str, list[str]]:
    """Return the module of a path and the names inside of it: a function, or class and method."""
    parts = path.split(".")
    inside = 2 if parts[-2][:1].isupper() else 1
    return ".".join(parts[:-inside]), parts[-inside:]


def _parameters(body: list[ast.stmt], names: list[str]) -> tuple[str, ...] | None:
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name == names[0] and len(names) > 1:
            return _parameters(node.body, names[1:])
        if isinstance(node, ast.FunctionDef) and [node.name] == names:
            return tuple(a.arg for a in (*node.args.posonlyargs, *node.args.args))
    return None
