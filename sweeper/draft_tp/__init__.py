"""Draft tensor parallelism for SGLang: a plugin that gives the draft model a TP size of its own.

SGLang finds it by the entry point group `sglang.srt.plugins` in the process that starts the
server and in each scheduler process, one a GPU. There it does nothing unless the variable
SWEEPER_DRAFT_TP is set. With four GPUs:

    SWEEPER_DRAFT_TP   target     draft, on the same GPUs
    not set            [0 1 2 3]  [0 1 2 3]            two all-reduces a layer and step
    2                  [0 1 2 3]  [0 1] [2 3]          the same over two GPUs; two copies
    1                  [0 1 2 3]  [0] [1] [2] [3]      none; four copies of weights and KV

    a round:  draft on each group -> one all-gather over the target's group: rank 0's tokens
              are everybody's, and all ranks see whether the others had the same round
              -> the target verifies, as ever

    plan.py       what is asked for, and what is refused         pure, also read by the adapter
    versions.py   where SGLang is changed, by version            pure, reads source, imports none
    groups.py     the draft's process groups and the scope in which they hold
    sharing.py    rows of the target's embedding and head for a draft that is split differently
    agreement.py  the all-gather of a round and the check of it
    hooks.py      these, put into SGLang's classes
    plugin.py     the entry point

Nothing here imports another part of Sweeper, and only modules that a scheduler process loads
import torch or SGLang: `pip install --no-deps sweeper` beside SGLang is enough.
"""
