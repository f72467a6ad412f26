"""TEST USE ONLY: one rank of a group, run by a Python that has torch and SGLang.

    python rank_program.py KIND RANK SIZE FOLDER

Prints one JSON object: what the rank found in each case of the kind. FOLDER is where ranks meet.
"""

# mypy: ignore-errors
import json
import os
import sys
from datetime import timedelta
from types import SimpleNamespace

import torch
from torch import distributed

VOCAB, HIDDEN = 500, 256


def agreement(*, strict=False):
    from sweeper.draft_tp.agreement import Agreement

    return Agreement(distributed.group.WORLD, most_requests=4, strict=strict)


def drafts(shift=0, *, requests=2, steps=3, topk=1):
    """Return lengths, last tokens, parents, order and tokens of a round."""
    lengths = torch.arange(10, 10 + requests)
    last = torch.arange(requests, dtype=torch.int32)
    parents = torch.arange(-1, topk * (steps - 1)).repeat(requests, 1) if steps > 1 else None
    if parents is None:
        parents = torch.empty(requests, 0, dtype=torch.int64)
    order = torch.arange(steps).repeat(requests, 1)
    tokens = torch.arange(requests * steps).view(requests, steps) + shift
    return [lengths, last, parents, order, tokens]


def case_rank_0_decides(rank, size):
    told = agreement()
    answers = []
    for number, requests in enumerate((2, 1, 4, 2, 2)):
        expected = drafts(number, requests=requests)[2:]
        settled = told.settle(*drafts(number + 1000 * rank, requests=requests))
        same = all(
            torch.equal(a, b) and a.dtype == b.dtype
            for a, b in zip(settled, expected, strict=True)
        )
        answers.append(same)
    return {"same": answers, "rounds": told.rounds, "corrected": told.corrected}


def case_one_step(rank, size):
    told = agreement()
    settled = told.settle(*drafts(rank, steps=1))
    return {"tokens": settled[2].tolist(), "parents": list(settled[0].shape)}


def case_tree(rank, size):
    told = agreement()
    given = drafts(rank, steps=5, topk=4)
    given[2] = given[2] + rank
    settled = told.settle(*given)
    return {"parents": settled[0].tolist(), "tokens": settled[2].tolist()}


def case_strict(rank, size):
    told = agreement(strict=True)
    told.settle(*drafts())
    told.settle(*drafts(int(rank == size - 1)))


def case_other_lengths(rank, size):
    told = agreement()
    told.settle(*drafts())
    given = drafts()
    given[0][1] += int(rank == 1)
    told.settle(*given)


def case_other_tokens(rank, size):
    given = drafts()
    given[1][0] += int(rank == 1)
    agreement().settle(*given)


def case_other_batch(rank, size):
    agreement().settle(*drafts(requests=1 + int(rank == 1)))


def case_too_many(rank, size):
    agreement().settle(*drafts(requests=5))


def case_wider(rank, size):
    told = agreement()
    told.settle(*drafts(requests=4))
    told.settle(*drafts(requests=4, steps=4))


def sglang_groups(rank, size):
    """Make SGLang's groups on CPUs, as a scheduler process does, and return its TP group."""
    from sglang.srt.distributed import parallel_state

    if parallel_state.model_parallel_is_initialized():
        return parallel_state.get_tp_group()
    from sglang.srt.layers import dp_attention
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    arguments = ServerArgs(model_path="dummy", device="cpu", attention_backend="torch_native")
    set_global_server_args_for_scheduler(arguments)
    parallel_state.set_custom_all_reduce(False)
    parallel_state.init_distributed_environment(
        backend="gloo", world_size=size, rank=rank, local_rank=rank
    )
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)
    dp_attention._ATTN_DP_SIZE = 1
    return parallel_state.get_tp_group()


def plan(size, draft):
    from sweeper.draft_tp.plan import Plan

    return Plan(target_size=size, draft_size=draft)


def case_groups(rank, size):
    from sglang.srt.distributed import parallel_state

    from sweeper.draft_tp import groups

    target = sglang_groups(rank, size)
    found = {}
    for draft in (1, 2):
        group = groups.make(target, plan(size, draft))
        with groups.scope(group), groups.scope(group):
            inside = (
                parallel_state.get_tensor_model_parallel_world_size(),
                parallel_state.get_attn_tensor_model_parallel_world_size(),
                parallel_state.get_attn_tensor_model_parallel_rank(),
            )
        found[draft] = {"ranks": list(group.ranks), "inside": inside}
    assert parallel_state.get_tp_group() is target
    assert parallel_state.get_attn_tp_group() is target
    return found


def case_tables(rank, size):
    from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding

    from sweeper.draft_tp import groups, sharing

    target = sglang_groups(rank, size)
    full = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(0))
    shared = VocabParallelEmbedding(VOCAB, HIDDEN, params_dtype=torch.bfloat16)
    shared.weight_loader(shared.weight, full)
    ids = torch.arange(VOCAB)
    expected = full.to(torch.bfloat16)
    found = []
    for draft in (1, 2):
        group = groups.make(target, plan(size, draft))
        with groups.scope(group):
            own = VocabParallelEmbedding(VOCAB, HIDDEN, params_dtype=torch.bfloat16)
            own.weight.data.fill_(7)
            sharing.fill(own, shared.weight, target.device_group)
            found.append(torch.equal(own(ids), expected))
            # A table that every rank has whole, as without a split vocabulary.
            sharing.fill(own, expected, target.device_group)
            found.append(torch.equal(own(ids), expected))
    return {"equal": found, "rows": list(shared.weight.shape)}


def case_head(rank, size):
    """A draft without a head of its own takes the target's, and not one of another width."""
    from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding

    from sweeper.draft_tp import groups, sharing

    target = sglang_groups(rank, size)
    table = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(3))
    shared = VocabParallelEmbedding(VOCAB, HIDDEN, params_dtype=torch.float32)
    shared.weight_loader(shared.weight, table)
    found = []
    for draft in (1, 2):
        group = groups.make(target, plan(size, draft))
        with groups.scope(group):
            model = eagle3(draft_weights())
        sharing.lend(model, target.device_group)
        model.set_embed_and_head(shared.weight, shared.weight)
        at = model.lm_head.shard_indices
        rows = table[at.org_vocab_start_index : at.org_vocab_end_index]
        layers = (model.lm_head, model.model.embed_tokens)
        found += [torch.equal(layer.weight[: len(rows)], rows) for layer in layers]
        assert not model.lm_head.weight[len(rows) :].any()
    try:
        model.set_embed_and_head(shared.weight, shared.weight[:, :-1])
    except RuntimeError as error:
        return {"equal": found, "error": str(error)}


def eagle3(weights):
    """Build SGLang's own EAGLE-3 draft in the group of the moment; attention is plain here."""
    from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3
    from transformers import LlamaConfig

    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_attention_heads=8,
        num_key_value_heads=4,
        num_hidden_layers=1,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        draft_vocab_size=VOCAB,
    )
    model = LlamaForCausalLMEagle3(config).float()
    model.load_weights(weights.items())
    for layer in model.model.layers:
        attention = layer.self_attn.attn
        attention.forward = plain_attention(attention)
    return model


def plain_attention(layer):
    def forward(q, k, v, forward_batch, *_, **__):
        heads, kv = layer.tp_q_head_num, layer.tp_k_head_num
        q, k, v = (
            x.view(len(q), n, -1).transpose(0, 1)[None] for x, n in ((q, heads), (k, kv), (v, kv))
        )
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        )
        return out[0].transpose(0, 1).reshape(q.shape[2], -1)

    return forward


def draft_weights():
    random = torch.Generator().manual_seed(1)

    def matrix(rows, columns):
        return torch.randn(rows, columns, generator=random) / columns**0.5

    both = {"q_proj": (HIDDEN, 2 * HIDDEN), "k_proj": (HIDDEN // 2, 2 * HIDDEN)}
    both |= {"v_proj": (HIDDEN // 2, 2 * HIDDEN), "o_proj": (HIDDEN, HIDDEN)}
    weights = {f"midlayer.self_attn.{name}.weight": matrix(*s) for name, s in both.items()}
    for name in ("gate_proj", "up_proj"):
        weights[f"midlayer.mlp.{name}.weight"] = matrix(2 * HIDDEN, HIDDEN)
    weights["midlayer.mlp.down_proj.weight"] = matrix(HIDDEN, 2 * HIDDEN)
    weights["fc.weight"] = matrix(HIDDEN, 3 * HIDDEN)
    weights["lm_head.weight"] = matrix(VOCAB, HIDDEN)
    for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        weights[f"midlayer.{name}.weight"] = torch.ones(HIDDEN)
    weights["norm.weight"] = torch.ones(HIDDEN)
    return weights


def case_model(rank, size):
    from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding

    from sweeper.draft_tp import groups, sharing

    target = sglang_groups(rank, size)
    random = torch.Generator().manual_seed(2)
    table = torch.randn(VOCAB, HIDDEN, generator=random)
    shared = VocabParallelEmbedding(VOCAB, HIDDEN, params_dtype=torch.float32)
    shared.weight_loader(shared.weight, table)
    ids = torch.randint(VOCAB, (9,), generator=random)
    batch = SimpleNamespace(
        mm_input_embeds=None,
        forward_mode=SimpleNamespace(is_extend=lambda: False),
        spec_info=SimpleNamespace(hidden_states=torch.randn(9, 3 * HIDDEN, generator=random)),
    )
    logits, sizes = {}, {}
    for draft in sorted({1, 2, size}):
        group = target if draft == size else groups.make(target, plan(size, draft))
        with groups.scope(group):
            model = eagle3(draft_weights())
            if draft == size:
                # What SGLang's own method does, less its call for a GPU.
                model.model.embed_tokens.weight = shared.weight
            else:
                sharing.lend(model, target.device_group)
                model.set_embed(shared.weight)
            hidden, _ = model.model(ids, torch.arange(9), batch)
            part = hidden @ model.lm_head.weight.T
            whole = group.all_gather(part) if draft > 1 else part
            logits[draft] = whole[:, :VOCAB]
        sizes[draft] = sorted(groups.sizes_of(model))
    reference = logits[size]
    return {
        "sizes": sizes,
        "close": {k: float((v - reference).abs().max()) for k, v in logits.items()},
        "tokens": {k: v.argmax(dim=1).tolist() for k, v in logits.items()},
        "spread": float(reference.std()),
    }


AGREEMENT = (
    case_rank_0_decides,
    case_one_step,
    case_tree,
    case_strict,
    case_other_lengths,
    case_other_tokens,
    case_other_batch,
    case_too_many,
    case_wider,
)
SGLANG = (case_groups, case_tables, case_head, case_model)


def main():
    kind, rank, size, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=120),
    )
    torch.set_grad_enabled(False)
    found = {}
    for case in {"agreement": AGREEMENT, "sglang": SGLANG}[kind]:
        name = case.__name__.removeprefix("case_")
        try:
            found[name] = case(rank, size)
        except (AssertionError, RuntimeError, ValueError) as error:
            found[name] = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(found), flush=True)
    distributed.barrier()
    # A thread of gloo that is still at work when Python ends would abort the process.
    os._exit(0)


if __name__ == "__main__":
    main()
