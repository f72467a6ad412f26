"""The changes to SGLang's classes, in a scheduler process.

EagleDraftWorker.__init__   makes the groups; the draft is built inside its own
alloc_memory_pool           the draft's KV pool has its own number of heads
init_lm_head                the target's tables are gathered, not shared
the tree of a round         built from rank 0's tokens (see agreement.py)
the pool's size             counts the draft's KV a token as it is, not as 1/n of it
get_init_info, get_internal_state   say what size the built draft has
"""

import functools
import inspect
import logging
import pkgutil
from collections.abc import Callable
from typing import Any

from sweeper.draft_tp import groups, sharing, versions
from sweeper.draft_tp.agreement import Agreement
from sweeper.draft_tp.plan import DRAFT_MODELS, VARIABLE, Plan

logger = logging.getLogger(__name__)


class DraftTP:
    """One server's draft, from its groups to its rounds. One a scheduler process."""

    def __init__(self, plan: Plan, style: versions.Style) -> None:
        """Remember what to do; nothing is changed before `install`."""
        self._plan = plan
        self._style = style
        self._target: Any = None
        self._group: Any = None
        self._worker: Any = None
        self._agreement: Agreement | None = None

    def install(self) -> None:
        """Put the hooks into SGLang's classes.

        Raises:
            RuntimeError: One of them is not there afterwards: SGLang only logs a failure, and
                passes over what another plugin had hooked before.
        """
        from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType

        source = HookSource(plugin_name="sweeper-draft-tp", dist_name="sweeper")
        around, after = HookType.AROUND, HookType.AFTER
        hooks: list[tuple[str, Callable[..., Any], HookType]] = [
            (f"{versions.WORKER}.__init__", self._build, around),
            (f"{versions.WORKER}.alloc_memory_pool", self._alloc, around),
            (f"{versions.WORKER}.init_lm_head", self._share, around),
            (versions.POOL, self._count_kv, after),
            (f"{versions.SCHEDULER}.get_init_info", self._tell, after),
            (f"{versions.SCHEDULER}.get_internal_state", self._tell_live, after),
        ]
        if self._style.name == "layout":
            hooks += [
                (versions.LAYOUT, self._layout, after),
                (versions.VERIFY_INPUT, self._settle_verify_input, around),
            ]
        else:
            hooks += [(versions.TREE, self._settle_tree, around)]
        before = {target: pkgutil.resolve_name(target) for target, _, _ in hooks}
        for target, hook, kind in hooks:
            HookRegistry.register(target, hook, kind, source=source)
        HookRegistry.apply_hooks()
        for target, unhooked in before.items():
            if pkgutil.resolve_name(target) is unhooked:
                raise RuntimeError(f"sweeper draft TP: no hook could be put on {target}")

    @property
    def draft_size(self) -> int:
        """The TP size of the built draft, read from its layers.

        Raises:
            RuntimeError: No draft was built, or its layers differ.
        """
        if self._worker is None:
            raise RuntimeError(
                f"sweeper draft TP: {VARIABLE} is set, and no EAGLE draft was built"
            )
        sizes = groups.sizes_of(self._worker.draft_runner.model)
        if sizes != {self._plan.draft_size}:
            raise RuntimeError(
                f"sweeper draft TP: the draft was to be split by {self._plan.draft_size}, "
                f"and its layers are by {sorted(sizes)}"
            )
        return self._plan.draft_size

    def _build(self, original: Callable[..., None], worker: Any, *args: Any, **named: Any) -> None:
        from sglang.srt.distributed import parallel_state

        self._target = parallel_state.get_tp_group()
        self._same_plan_everywhere()
        self._group = groups.make(self._target, self._plan)
        self._warm_up()
        if self._style.name == "group":
            with groups.scope(self._group):
                original(worker, *args, **named)
            # SGLang enters this with the draft's group wherever the draft runs.
            worker.draft_tp_context = groups.scope
        else:
            original(worker, *args, **named)
        model = worker.draft_runner.model
        names = {base.__name__ for base in type(model).__mro__}
        if names.isdisjoint(DRAFT_MODELS):
            raise RuntimeError(
                f"sweeper draft TP: the draft is a {type(model).__name__}; a TP size of its own "
                f"is made for {' and '.join(DRAFT_MODELS)}"
            )
        self._worker = worker
        logger.info(
            "sweeper draft TP: rank %d of the target's %d drafts at TP %d with ranks %s",
            self._target.rank_in_group,
            self._target.world_size,
            self.draft_size,
            list(self._group.ranks),
        )

    def _same_plan_everywhere(self) -> None:
        """Compare the plan over the target's group: unequal groups would never come about."""
        from torch import distributed

        plan, everywhere = self._plan, [None] * self._target.world_size
        if self._target.world_size != plan.target_size:
            raise RuntimeError(
                f"sweeper draft TP: the target's group has {self._target.world_size} ranks, and "
                f"--tp-size is {plan.target_size}"
            )
        distributed.all_gather_object(everywhere, plan.draft_size, group=self._target.cpu_group)
        if set(everywhere) != {plan.draft_size}:
            raise RuntimeError(f"sweeper draft TP: {VARIABLE} differs by rank: {everywhere}")

    def _warm_up(self) -> None:
        """Run the collective of a round once, so that its buffers are there before the KV pool."""
        import torch
        from torch import distributed

        one = torch.ones(1, dtype=torch.int64, device=self._target.device)
        many = one.new_empty(self._target.world_size)
        distributed.all_gather_into_tensor(many, one, group=self._target.device_group)

    def _layout(self, layout: Any, *_: Any, **__: Any) -> Any:
        if self._group is None:
            return layout
        size = self._group.world_size
        made = {"tp_group": self._group, "attn_tp_size": size, "disable_cp": layout.disable_cp}
        return type(layout)(**made)

    def _alloc(self, original: Callable[..., Any], worker: Any, *args: Any, **named: Any) -> Any:
        if self._style.name == "group":
            context = groups.scope(self._group)
        else:
            from sglang.srt.speculative.spec_utils import draft_tp_context

            context = draft_tp_context(worker.parallel_layout)
        with context:
            result = original(worker, *args, **named)
        self._agreement = Agreement(
            self._target.device_group,
            most_requests=worker.req_to_token_pool.req_to_token.shape[0],
            strict=self._plan.strict,
        )
        return result

    def _share(self, original: Callable[..., Any], worker: Any, *args: Any, **named: Any) -> Any:
        sharing.lend(worker.draft_runner.model, self._target.device_group)
        return original(worker, *args, **named)

    def _count_kv(self, configurator: Any, runner: Any, *_: Any, **__: Any) -> None:
        """Add what a token takes in the draft's KV pool beyond SGLang's estimate.

        SGLang takes the draft's layers for as large as the target's, by GPU; a draft of less TP
        has more heads on each.
        """
        if runner.is_draft_worker or self._worker is None:
            return
        if not hasattr(configurator, "_cell_size"):
            logger.warning("sweeper draft TP: the draft's KV is not counted for this model")
            return
        config = self._worker.draft_runner.model_config
        # A copy in a smaller type would take less; the target's is the safe side.
        width = runner.kv_cache_dtype.itemsize
        needed = kv_bytes(config, self._plan.draft_size, width)
        counted = config.num_hidden_layers * layer_bytes(configurator, runner)
        add_draft_bytes(configurator, max(0, needed - counted))
        logger.debug("sweeper draft TP: %d B of KV a token for the draft", needed)

    def _settle_tree(self, original: Callable[..., Any], *args: Any, **named: Any) -> Any:
        given = _by_name(original, args, named)
        self._settle(given, lengths=given["seq_lens"], last_tokens=given["bonus_tokens"])
        return original(**given)

    def _settle_verify_input(self, original: Callable[..., Any], *args: Any, **named: Any) -> Any:
        given = _by_name(original, args, named)
        batch = given["batch"]
        if not batch.forward_mode.is_idle():
            last_tokens = given["draft_input"].bonus_tokens
            self._settle(given, lengths=batch.seq_lens, last_tokens=last_tokens)
        return original(**given)

    def _settle(self, given: dict[str, Any], *, lengths: Any, last_tokens: Any) -> None:
        if self._agreement is None:
            raise RuntimeError("sweeper draft TP: a round before the draft's memory was there")
        names = ("parent_list", "top_scores_index", "draft_tokens")
        settled = self._agreement.settle(lengths, last_tokens, *(given[name] for name in names))
        given.update(zip(names, settled, strict=True))

    def _tell(self, info: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        return {**info, "draft_tp_size": self.draft_size}

    def _tell_live(self, answer: Any, *_: Any, **__: Any) -> Any:
        state = answer.internal_state
        state["draft_tp_size"] = self.draft_size
        if self._agreement is not None:
            state["draft_tp_rounds"] = self._agreement.rounds
            state["draft_tp_corrected_rounds"] = self._agreement.corrected
        return answer


@functools.cache
def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _by_name(
    function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by name, once a round; `Signature.bind` takes longer."""
    return {**dict(zip(_parameters(function), args, strict=False)), **named}


def kv_bytes(config: Any, size: int, width: int) -> int:
    """Return the bytes of KV a token that a GPU holds of a draft.

    Args:
        config: SGLang's ModelConfig of the draft.
        size: The draft's TP size.
        width: Bytes of a number.
    """
    heads = config.get_num_kv_heads(size)
    return int(config.num_hidden_layers * heads * (config.head_dim + config.v_head_dim) * width)


def add_draft_bytes(configurator: Any, more: int) -> None:
    """Let a token take so many bytes more in the draft's KV pool.

    Configurators of models with windows compute their pools from a number of full layers, of
    which the draft's are a part, and keep the sum beside it.
    """
    full = getattr(configurator, "_full_per_token", 0)
    if full and hasattr(configurator, "_draft_full_layers_num"):
        configurator._draft_full_layers_num += more / full
        if hasattr(configurator, "_recompute_cell_size"):  # 0.5.23
            configurator._recompute_cell_size()
            return
    configurator._cell_size += more


def layer_bytes(configurator: Any, runner: Any) -> int:
    """Return the bytes a token that SGLang counts for one draft layer: those of a target's.

    0 where they cannot be told: the pool is then rather too small than too large.
    """
    full = getattr(configurator, "_full_per_token", None)
    if full is not None:
        return int(full)
    size = getattr(configurator, "_compute_cell_size", None)
    if size is None:
        return 0
    one, two = int(size(runner, 1)), int(size(runner, 2))
    # Where a layer more costs nothing, the figure is not one of layers.
    return one if two == 2 * one else 0
