"""Records for tests, with defaults for all that a test does not care about."""

from collections.abc import Mapping

from sweeper.errors import Failure, FailureClass, Stage
from sweeper.records import (
    HostFacts,
    Launch,
    Measurement,
    Point,
    Purpose,
    RequestTiming,
    ServerFacts,
    Trial,
    TrialRecord,
    TrialState,
)


def make_launch(**changes: object) -> Launch:
    given: dict[str, object] = {
        "engine": "sglang",
        "command": ("python", "-m", "sweeper.engines.simulated"),
        "model": "/models/target",
        "gpus": 8,
        "flags": {"tp-size": 8},
        "env": {},
        "simulated": True,
    }
    return Launch(**{**given, **changes})  # type: ignore[arg-type]


def make_trial(number: int = 0, point: Point | None = None, **changes: object) -> Trial:
    given: dict[str, object] = {
        "study": "test",
        "number": number,
        "purpose": Purpose.SEARCH,
        "point": point if point is not None else {"steps": number},
        "launch": make_launch(flags={"tp-size": 8, "speculative-num-steps": number}),
    }
    return Trial(**{**given, **changes})  # type: ignore[arg-type]


def make_requests(tok_s: float, prompts: int = 5, tokens: int = 100) -> tuple[RequestTiming, ...]:
    """Return good requests, one after the other, each at `tok_s`, first token after 10 ms."""
    found, now = [], 0
    for index in range(prompts):
        took = int(tokens / tok_s * 1e9)
        found.append(
            RequestTiming(
                workload="single",
                repeat=0,
                prompt_id=f"p{index}",
                prompt_kind="chat",
                sent_ns=now,
                first_ns=now + 10_000_000,
                last_ns=now + took,
                chunk_ns=(now + 10_000_000, now + took),
                prompt_tokens=10,
                output_tokens=tokens,
                verify_steps=50,
                accepted_histogram=(20, 20, 10),
                finish="length",
                text=f"answer {index}",
            )
        )
        now += took
    return tuple(found)


def make_record(
    number: int = 0,
    tok_s: float | None = 100.0,
    *,
    state: TrialState = TrialState.COMPLETE,
    kind: FailureClass = FailureClass.OOM,
    phases_s: Mapping[str, float] | None = None,
    measurement: Mapping[str, object] | None = None,
    log: str | None = "logs/x.log",
    **changes: object,
) -> TrialRecord:
    complete = state is TrialState.COMPLETE
    measured = Measurement(
        workload="single",
        requests=5,
        output_tok_s=tok_s,
        accept_length=1.8,
        step_time_ms=18.0,
        accepted_histogram=(20, 20, 10),
        accepted_by_position=(0.6, 0.2),
        **(measurement or {}),  # type: ignore[arg-type]
    )
    return TrialRecord(
        trial=make_trial(number, **changes),  # type: ignore[arg-type]
        state=state,
        failure=None
        if complete
        else Failure(kind=kind, stage=Stage.LOAD, line="it broke", exit_code=-9),
        measurements=(measured,) if complete else (),
        requests=make_requests(tok_s) if complete and tok_s else (),
        server=ServerFacts(
            version="0.5.23",
            flags={"tp-size": 8, "page-size": None},
            rewritten={"speculative-num-draft-tokens": (8, 4)},
            simulated=True,
            time_scale=10.0,
            max_total_tokens=1000,
        )
        if complete
        else None,
        host=HostFacts(host="node", slot="slot-0", gpu_name="simulated", gpu_ids=(0, 1)),
        started_at="2026-11-29T12:00:00+00:00",
        phases_s=phases_s or {"start": 10.0, "start.load": 4.0, "measure": 20.0, "stop": 1.0},
        log=log,
    )
