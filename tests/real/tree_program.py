"""For a released SGLang's Python: which draft trees does its own code take?

Prints [[steps, top-k, draft tokens, taken], ...]. The two functions are the ones between drafting
and verifying that are shaped by all three numbers; they need no model and no GPU.
"""

import json
from types import SimpleNamespace

import torch
from sglang.srt.speculative.eagle_utils import organize_draft_results

try:
    from sglang.srt.speculative.eagle_worker_common import _compact_accept_to_front
except ImportError:  # 0.5.15
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

    def _compact_accept_to_front(
        x: torch.Tensor, accept_index: torch.Tensor, bs: int, *, num_draft_tokens: int
    ) -> torch.Tensor:
        worker = SimpleNamespace(speculative_num_draft_tokens=num_draft_tokens)
        return EAGLEWorkerV2._compact_accept_to_front(worker, x, accept_index, bs)


STREAMS = 2


def takes(steps: int, topk: int, draft: int) -> bool:
    scores = [torch.rand(STREAMS, 1 if i == 0 else topk, topk) for i in range(steps)]
    tokens = [torch.zeros(STREAMS, s.shape[1] * topk, dtype=torch.long) for s in scores]
    parents = [torch.zeros(STREAMS, topk, dtype=torch.long) for _ in range(steps)]
    accepted = torch.full((STREAMS, steps + 1), -1, dtype=torch.int32)
    try:
        organize_draft_results(scores, tokens, parents, draft)
        predicted = torch.zeros(STREAMS * draft, dtype=torch.int32)
        _compact_accept_to_front(predicted, accepted, STREAMS, num_draft_tokens=draft)
    except RuntimeError:
        return False
    return True


shapes = [
    (steps, topk, draft)
    for steps in (1, 2, 3, 4)
    for topk in (2, 3, 4)
    for draft in range(2, 3 + topk + (steps - 1) * topk**2)
]
print(json.dumps([[*shape, takes(*shape)] for shape in shapes]))
