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

A small model waits for the processor that launches its kernels, so a round launches few: all
buffers and their parts are made once, and the rows are compared on the host.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

#: Rounds between an all-gather and the look at its rows. SGLang prepares a round while the last one
#: runs, so rows that are two rounds old cost no wait.
_LAG = 2


class Disagreement(RuntimeError):
    """Ranks of the target's group are not in the same round, or draft differently."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """Parts of the buffers for a number of requests.

    Attributes:
        header: That number, shape [1].
        sent: What this rank fills of its row, shape [numbers].
        received: The same part of all rows, shape [ranks, numbers].
        choice: Rank 0's parents, order and tokens, views of `received`.
    """

    header: Any
    sent: Any
    received: Any
    choice: tuple[Any, ...]


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
        self._rows: Any = None
        self._parts: dict[tuple[int, ...], _Parts] = {}
        self._on_host: list[tuple[Any, Any]] = []
        self._pending: deque[tuple[int, int, Any, Any]] = deque()

    def settle(
        self, lengths: Any, last_tokens: Any, parents: Any, order: Any, tokens: Any
    ) -> tuple[Any, Any, Any]:
        """Return rank 0's parents, order and tokens, in the shapes and types of one's own.

        They are good until the next round, like what a CUDA graph gives.

        Args:
            lengths: Tokens of each request so far, shape [requests].
            last_tokens: The last token of each, shape [requests].
            parents: Parents in the draft tree, shape [requests, p], p may be 0.
            order: Nodes in the order of their scores, shape [requests, s].
            tokens: Draft tokens, shape [requests, t].

        Raises:
            Disagreement: See the module; for a round at most two rounds ago.
            ValueError: There are more requests than were said to be possible, or more numbers
                for each than in the first round.
        """
        import torch
        from torch import distributed

        self.rounds += 1
        choice = (parents, order, tokens)
        parts = self._parts_for(lengths, choice)
        # Of several types, a GPU's cat copies part by part; SGLang's last tokens have 32 bits.
        last = last_tokens.to(parts.sent.dtype)
        filled = [parts.header, lengths, last, *(part.reshape(-1) for part in choice)]
        torch.cat(filled, out=parts.sent)
        distributed.all_gather_into_tensor(self._rows, self._row, group=self._group)
        self._look(parts.received, 1 + 2 * lengths.shape[0])
        first, second, third = (
            settled.to(own.dtype) for settled, own in zip(parts.choice, choice, strict=True)
        )
        return first, second, third

    def _parts_for(self, lengths: Any, choice: tuple[Any, ...]) -> _Parts:
        """Return the parts for as many requests; the buffers have one size in all rounds."""
        requests = lengths.shape[0]
        widths = [part.shape[1] for part in choice]
        made = self._parts.get((requests, *widths))
        if made is not None:
            return made
        made = self._make_parts(requests, widths, lengths.device)
        self._parts[requests, *widths] = made
        return made

    def _make_parts(self, requests: int, widths: list[int], device: Any) -> _Parts:
        import torch

        if requests > self._most_requests:
            raise ValueError(f"{requests} requests, and {self._most_requests} were the most")
        if self._row is None:
            size = 1 + self._most_requests * (2 + sum(widths))
            self._row = torch.zeros(size, dtype=torch.int64, device=device)
            self._rows = self._row.new_empty(self._size * size)
        used = 1 + requests * (2 + sum(widths))
        if used > self._row.numel():
            raise ValueError(f"{widths} numbers for each request are more than in the first round")
        received = self._rows.view(self._size, -1)[:, :used]
        choice, start = [], 1 + 2 * requests
        for width in widths:
            end = start + requests * width
            choice.append(received[0, start:end].view(requests, width))
            start = end
        return _Parts(
            header=torch.full((1,), requests, device=device),
            sent=self._row[:used],
            received=received,
            choice=tuple(choice),
        )

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
