"""What the ranks agree on once a round: rank 0's draft tokens, and that the round is the same.

Ranks that draft alone normally draft the same: they have the same weights, and their inputs are
the same bits, since the target's hidden states and logits come out of all-reduces and all-gathers.
Where kernels are free to sum in another order they may not, and a target that verified different
tokens on each rank would wait for ever or answer nonsense. So each round every rank sends a row,

    [ requests | lengths | last tokens | parents | order by score | draft tokens | rest ]
      `------------ the round -------'   `------------ the choice ------------'

in one all-gather outside of all CUDA graphs, takes the choice of rank 0's row, and compares all
rows with it. Another choice is counted (and an error where strict); another round is an error.
Every rank sees all rows, so all of them raise, in the same round, and none is left waiting.
The rows are compared on the host: a small model waits for the processor that launches its kernels,
and a comparison on the GPU would be four more of them.
"""

from collections import deque
from typing import Any

#: Rounds between an all-gather and the look at its rows. SGLang prepares a round while the last one
#: runs, so rows that are two rounds old cost no wait.
_LAG = 2


class Disagreement(RuntimeError):
    """Ranks of the target's group are not in the same round, or draft differently."""


class Agreement:
    """The agreement of one server; used by one thread.

    Attributes:
        rounds: Rounds so far.
        corrected: Rounds whose draft tokens differed between ranks, as far as looked at.
    """

    def __init__(self, group: Any, *, most_requests: int, strict: bool) -> None:
        """Remember the target's torch process group and the most requests of a round."""
        from torch import distributed

        self.rounds = 0
        self.corrected = 0
        self._group = group
        self._size = distributed.get_world_size(group)
        self._most_requests = most_requests
        self._strict = strict
        self._row: Any = None
        self._headers: dict[int, Any] = {}
        self._on_host: list[tuple[Any, Any]] = []
        self._pending: deque[tuple[int, int, Any, Any]] = deque()

    def settle(
        self, lengths: Any, last_tokens: Any, parents: Any, order: Any, tokens: Any
    ) -> tuple[Any, Any, Any]:
        """Return rank 0's parents, order and tokens, in the shapes and types of one's own.

        Args:
            lengths: Tokens of each request so far, shape [requests].
            last_tokens: The last token of each, shape [requests].
            parents: Parents in the draft tree, shape [requests, p], p may be 0.
            order: Nodes in the order of their scores, shape [requests, s].
            tokens: Draft tokens, shape [requests, t].

        Raises:
            Disagreement: See the module; for a round at most two rounds ago.
            ValueError: There are more requests than were said to be possible.
        """
        import torch
        from torch import distributed

        self.rounds += 1
        requests = lengths.shape[0]
        choice = (parents, order, tokens)
        row, header = self._buffers(requests, choice, lengths.device)
        parts = [header, lengths, last_tokens, *(part.reshape(-1) for part in choice)]
        used = sum(part.numel() for part in parts)
        torch.cat(parts, out=row[:used])
        rows = row.new_empty((self._size, row.numel()))
        distributed.all_gather_into_tensor(rows.view(-1), row, group=self._group)
        of_round = 1 + 2 * requests
        self._look(rows[:, :used], of_round)
        return _unpack(rows[0], of_round, choice)

    def _buffers(self, requests: int, choice: tuple[Any, ...], device: Any) -> tuple[Any, Any]:
        """Return the row that is sent, of one size in all rounds, and its first number."""
        import torch

        if requests > self._most_requests:
            raise ValueError(f"{requests} requests, and {self._most_requests} were the most")
        if self._row is None:
            width = 2 + sum(part.shape[1] for part in choice)
            size = 1 + self._most_requests * width
            self._row = torch.zeros(size, dtype=torch.int64, device=device)
        if requests not in self._headers:
            self._headers[requests] = torch.full((1,), requests, device=device)
        return self._row, self._headers[requests]

    def _look(self, rows: Any, of_round: int) -> None:
        """Queue the rows of this round, and compare those of two rounds ago."""
        if not rows.is_cuda:
            self._judge(self.rounds, of_round, rows)
            return
        buffer, event = self._host_buffer(most=self._size * self._row.numel())
        on_host = buffer[: rows.numel()].view(rows.shape)
        on_host.copy_(rows, non_blocking=True)
        event.record()
        self._pending.append((self.rounds, of_round, event, on_host))
        if len(self._pending) > _LAG:
            number, of_round, event, on_host = self._pending.popleft()
            event.synchronize()
            self._judge(number, of_round, on_host)

    def _host_buffer(self, most: int) -> tuple[Any, Any]:
        """Return a pinned buffer and its event, whose rows have been compared."""
        import torch

        if not self._on_host:
            self._on_host = [
                (torch.empty(most, dtype=torch.int64, pin_memory=True), torch.cuda.Event())
                for _ in range(_LAG + 1)
            ]
        return self._on_host[self.rounds % len(self._on_host)]

    def _judge(self, number: int, of_round: int, rows: Any) -> None:
        """Compare the rows of a round, shape [ranks, numbers], the first `of_round` the round's."""
        other = rows != rows[0]
        if not other.any():
            return
        in_round = other[:, :of_round].any(dim=1).nonzero().flatten().tolist()
        if in_round:
            raise Disagreement(
                f"sweeper draft TP: in round {number} the ranks {in_round} have other requests, "
                "lengths or accepted tokens than rank 0"
            )
        self.corrected += 1
        if self._strict:
            in_choice = other.any(dim=1).nonzero().flatten().tolist()
            raise Disagreement(
                f"sweeper draft TP: in round {number} the ranks {in_choice} drafted other tokens "
                "than rank 0"
            )


def _unpack(row: Any, start: int, like: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    taken = []
    for part in like:
        end = start + part.numel()
        taken.append(row[start:end].view(part.shape).to(part.dtype))
        start = end
    first, second, third = taken
    return first, second, third
