"""The windows over which a throughput is measured. Pure.

    passes       each from its first send to its last token: a known number of requests, all ended
    duration_s   the part of the window in which the load stood at its full height

A closed loop that sends for a while ends badly for a ratio of totals: after the deadline the last
streams end one by one, with fewer and fewer beside them. Their time would count as if the server
had been loaded. So of such a window only tokens that arrived before the deadline count, and only
the time until then; requests that straddle an end give the part that arrived inside.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.records import RequestTiming, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One window of load.

    Attributes:
        seconds: Its length, above 0.
        tokens: Output tokens of good requests in it; None if the server left one uncounted. A
            fraction where a request straddles an end.
        flight_s: Sum over requests of the time in flight within it, failed ones with a token too.
    """

    seconds: float
    tokens: float | None
    flight_s: float


def windows(requests: Sequence[RequestTiming], workload: Workload) -> list[Window]:
    """Return the windows of a workload: one a pass, or the steady part of a duration.

    A pass from which no good request came has none, and neither has a duration too short for a
    token to arrive in its steady part.
    """
    if workload.duration_s is not None:
        steady = _steady(requests, workload)
        return [] if steady is None else [steady]
    groups: dict[int, list[RequestTiming]] = defaultdict(list)
    for request in requests:
        groups[request.repeat].append(request)
    found = []
    for _, group in sorted(groups.items()):
        good = [r for r in group if r.error is None]
        ends = [r.last_ns for r in good if r.last_ns is not None]
        begin_ns = min(r.sent_ns for r in group)
        if ends and max(ends) > begin_ns:
            end_ns = max(ends)
            counts = [r.output_tokens for r in good]
            found.append(
                Window(
                    seconds=(end_ns - begin_ns) / 1e9,
                    tokens=None if None in counts else float(sum(n or 0 for n in counts)),
                    flight_s=_flight_s(group, begin_ns, end_ns),
                )
            )
    return found


def steady_ns(requests: Sequence[RequestTiming], workload: Workload) -> tuple[int, int]:
    """Return from when to when the load stood at its full height, in ns since the window began.

    It ends at the deadline, after which nothing is sent; with a trace that is over before, at its
    last request. It begins when the ramp is over. An open
    loop is not yet at its height then: requests are sent but none end; so it begins when the
    first request sent after the ramp has ended, if that is before the deadline.
    """
    begin_ns, end_ns = int(workload.ramp_s * 1e9), int((workload.duration_s or 0.0) * 1e9)
    if workload.arrivals is not None:
        end_ns = min(end_ns, max((r.sent_ns for r in requests), default=0))
    if workload.concurrency is None:
        ends = [
            r.last_ns
            for r in requests
            if r.error is None and r.last_ns is not None and r.sent_ns >= begin_ns
        ]
        begin_ns = min((e for e in ends if e < end_ns), default=begin_ns)
    else:
        begin_ns = max(begin_ns, min((r.sent_ns for r in requests), default=0))
    return begin_ns, end_ns


def tokens_between(request: RequestTiming, begin_ns: int, end_ns: int) -> float | None:
    """Return how many of the request's tokens arrived from `begin_ns` on and before `end_ns`.

    The server counts n tokens in all, and m pieces with content were stamped. The first piece is
    the token of the prefill; the other n - 1 are taken to be spread evenly over the other m - 1
    pieces. What that gets wrong is at most what one verify step yields, at each end. None if the
    server did not count.
    """
    count, stamps = request.output_tokens, request.chunk_ns
    if count is None:
        return None
    if not stamps and request.last_ns is not None:
        stamps = (request.last_ns,)
    inside = bisect_left(stamps, end_ns) - bisect_left(stamps, begin_ns)
    if inside <= 0:
        return 0.0
    if inside == len(stamps):
        return float(count)
    first = min(1, count) if begin_ns <= stamps[0] else 0
    others = inside - (begin_ns <= stamps[0])
    return first + others * max(count - 1, 0) / (len(stamps) - 1)


def _steady(requests: Sequence[RequestTiming], workload: Workload) -> Window | None:
    begin_ns, end_ns = steady_ns(requests, workload)
    found = [tokens_between(r, begin_ns, end_ns) for r in requests if r.error is None]
    counted = [n for n in found if n is not None]
    arrived = any(r.error is None and r.chunk_ns and r.chunk_ns[0] < end_ns for r in requests)
    if end_ns <= begin_ns or not arrived or (len(counted) == len(found) and not sum(counted)):
        return None
    return Window(
        seconds=(end_ns - begin_ns) / 1e9,
        tokens=sum(counted) if len(counted) == len(found) else None,
        flight_s=_flight_s(requests, begin_ns, end_ns),
    )


def _flight_s(requests: Sequence[RequestTiming], begin_ns: int, end_ns: int) -> float:
    """Return the time in flight between the ends, of requests that brought a token."""
    flights = (
        min(r.last_ns, end_ns) - max(r.sent_ns, begin_ns)
        for r in requests
        if r.last_ns is not None
    )
    return sum(max(f, 0) for f in flights) / 1e9
