"""SGLang's Prometheus metrics, those that a sweep reads; names and labels are SGLang's."""

from sweeper.engines.simulated.server import Server


def exposition(server: Server) -> str:
    """Return `/metrics` in Prometheus' text format."""
    scheduler, totals = server.scheduler, server.scheduler.totals
    model = str(server.flags["served_model_name"]).replace("\\", "\\\\").replace('"', '\\"')
    rank = f'engine_type="unified",model_name="{model}",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    plain = f'model_name="{model}"'
    streaming = f'is_streaming="true",{plain}'
    used = sum(j.prompt_tokens + j.produced for j in scheduler.running)
    lines: list[str] = []

    def metric(name: str, kind: str, text: str, labels: str, value: float) -> None:
        lines.append(f"# HELP sglang:{name} {text}")
        lines.append(f"# TYPE sglang:{name} {kind}")
        lines.append(f"sglang:{name}{{{labels}}} {float(value)}")

    def histogram(name: str, text: str, labels: str, total: float) -> None:
        lines.append(f"# HELP sglang:{name} {text}")
        lines.append(f"# TYPE sglang:{name} histogram")
        lines.append(f'sglang:{name}_bucket{{{labels},le="+Inf"}} {float(totals.requests)}')
        lines.append(f"sglang:{name}_count{{{labels}}} {float(totals.requests)}")
        lines.append(f"sglang:{name}_sum{{{labels}}} {total}")

    metric("num_running_reqs", "gauge", "Running requests.", rank, len(scheduler.running))
    metric("num_queue_reqs", "gauge", "Waiting requests.", rank, len(scheduler.waiting))
    metric("num_used_tokens", "gauge", "Tokens in the KV pool.", rank, used)
    metric(
        "token_usage", "gauge", "Used share of the KV pool.", rank,
        used / max(scheduler.pool_tokens, 1),
    )  # fmt: skip
    metric("gen_throughput", "gauge", "Tokens a second.", rank, totals.throughput)
    metric("num_retracted_reqs", "gauge", "Retracted requests.", rank, 0)
    if server.setting.draft is not None:
        length, rate = totals.last_accept_length, totals.last_accept_rate
        metric("spec_accept_length", "gauge", "Accept length of the last interval.", rank, length)
        metric("spec_accept_rate", "gauge", "Accept rate of the last interval.", rank, rate)
        metric("spec_num_steps", "gauge", "Draft steps.", rank, server.setting.steps)
        metric(
            "spec_num_draft_tokens", "gauge", "Verified tokens.", rank,
            server.setting.draft_tokens,
        )  # fmt: skip
        if totals.requests:
            metric(
                "spec_verify_calls_total", "counter", "Verify steps.", rank, totals.verify_calls
            )
    metric("prompt_tokens_total", "counter", "Prompt tokens.", plain, totals.prompt_tokens)
    metric("generation_tokens_total", "counter", "Tokens made.", plain, totals.generation_tokens)
    metric("num_requests_total", "counter", "Requests.", plain, totals.requests)
    metric("num_aborted_requests_total", "counter", "Aborted requests.", plain, totals.aborted)
    histogram("time_to_first_token_seconds", "Time to the first token.", streaming, totals.ttft_s)
    histogram("e2e_request_latency_seconds", "Time of a request.", streaming, totals.e2e_s)
    return "\n".join([*lines, ""])
