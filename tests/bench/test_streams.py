"""Streams as servers send them, cut anywhere."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.bench.events import EventStream
from sweeper.bench.streams import Answer, StreamFault, read_stream


def sse(*events: object, end: str = "\n", done: bool = True) -> bytes:
    """Return events as a server writes them."""
    lines = [f"data: {json.dumps(e, ensure_ascii=False)}{end}{end}" for e in events]
    return "".join([*lines, f"data: [DONE]{end}{end}" if done else ""]).encode()


def generate(text: str, tokens: int, finish: str | None = None, **meta: Any) -> dict[str, Any]:
    """Return a cumulative event of /generate."""
    reason = {"type": finish} if finish else None
    return {
        "text": text,
        "output_ids": list(range(tokens)),
        "meta_info": {"completion_tokens": tokens, "finish_reason": reason, **meta},
    }


def chat(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """Return an event of a chat."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


USAGE = {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19}
STREAMS = {
    "cumulative": sse(
        generate("Fünf ", 1), generate("Fünf Jäger", 3), generate("Fünf Jäger 🎯!", 7, "length")
    ),
    "chat": sse(
        chat({"role": "assistant", "content": ""}),
        chat({"content": "Fünf "}),
        chat({"content": "Jäger 🎯!"}, "stop"),
        {"choices": [], "usage": USAGE},
    ),
    "crlf with comments": b": hello\r\n\r\n"
    + sse(chat({"content": "Fünf "}), chat({"content": "Jäger 🎯!"}, "stop"), end="\r\n")
    + b": bye\r\n\r\n",
    "cr": sse(chat({"content": "Fünf "}), chat({"content": "Jäger 🎯!"}, "stop"), end="\r"),
    "without the last blank line": sse(
        chat({"content": "Fünf "}), chat({"content": "Jäger 🎯!"}, "stop"), done=False
    ).rstrip(b"\n"),
}


@pytest.mark.parametrize("name", STREAMS)
@given(data=st.data())
def test_cutting_the_bytes_anywhere_gives_the_same_pieces(name: str, data: st.DataObject) -> None:
    whole = STREAMS[name]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=len(whole))))
    blocks = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    answer, arrivals = read_stream(blocks)
    at_once, pieces = read_stream([whole])
    assert answer == at_once
    assert answer.text == "Fünf Jäger 🎯!"
    assert answer.fault is None
    assert len(arrivals) == len(pieces)
    assert arrivals == sorted(arrivals)


LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1)


@given(st.lists(LINE, min_size=1))
def test_an_event_may_have_several_data_lines(lines: list[str]) -> None:
    raw = "".join(f"data: {line}\n" for line in lines) + "\n"
    assert EventStream().feed(raw.encode()) == ["\n".join(lines).encode()]


def test_a_line_of_a_megabyte_is_read() -> None:
    text = "x" * 1_000_000
    whole = sse(generate(text, 5, "length"))
    blocks = [whole[i : i + 65_536] for i in range(0, len(whole), 65_536)]
    answer, arrivals = read_stream(blocks)
    assert answer.text == text
    assert len(arrivals) == 1


def test_other_fields_and_data_without_a_space_are_read_as_the_standard_says() -> None:
    assert EventStream().feed(b"event: x\nid: 3\nretry: 5\ndata:a\ndata\n\n:c\n\n") == [b"a\n"]


def read(*events: object, done: bool = True) -> tuple[Answer, int]:
    """Return the answer and the number of pieces with content."""
    answer, arrivals = read_stream([sse(*events, done=done)])
    return answer, len(arrivals)


@pytest.mark.parametrize(
    "opening",
    [
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None},
        {"role": "assistant"},
        {},
    ],
)
def test_an_opening_without_content_is_no_first_token(opening: dict[str, Any]) -> None:
    _, pieces = read(chat(opening), chat({"content": "a"}, "stop"))
    assert pieces == 1


def test_reasoning_and_tool_calls_are_content() -> None:
    call = {"function": {"name": "look", "arguments": '{"a"'}}
    answer, pieces = read(
        chat({"reasoning_content": "Hm. "}),
        chat({"content": "Yes. "}),
        chat({"tool_calls": [call]}),
        chat({"tool_calls": [{"function": {"arguments": ": 1}"}}]}, "tool_calls"),
    )
    assert pieces == 4
    assert answer.text == 'Hm. Yes. look{"a": 1}'


@pytest.mark.parametrize(
    ("events", "tokens"),
    [
        ([chat({"content": "a b c"}, "stop")], None),
        ([chat({"content": "a"}, "stop"), {"choices": [], "usage": USAGE}], 7),
        ([chat({"content": "a"}, "stop", usage=USAGE)], 7),
        (
            [
                chat({"content": "a"}, usage={**USAGE, "completion_tokens": 3}),
                chat({"content": "b"}, "stop", usage=USAGE),
                {"choices": [], "usage": None},
            ],
            7,
        ),
    ],
)
def test_tokens_are_counted_by_usage_wherever_it_stands(
    events: list[dict[str, Any]], tokens: int | None
) -> None:
    answer, _ = read(*events)
    assert answer.output_tokens == tokens
    assert answer.fault is None


def test_reasoning_tokens_are_not_added() -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": 23871}, "reasoning_tokens": 23871}
    usage = {**USAGE, "completion_tokens": 23870, **details}
    answer, _ = read(chat({"content": "a"}, "stop", usage=usage))
    assert answer.output_tokens == 23870
    assert answer.note == "the server counts 23871 reasoning tokens among 23870"


def test_incremental_pieces_are_joined() -> None:
    events = [
        {"text": t, "output_ids": [1], "meta_info": {"completion_tokens": n, "finish_reason": f}}
        for n, (t, f) in enumerate([("a", None), ("apple", None), ("a", {"type": "length"})], 1)
    ]
    answer, pieces = read(*events)
    assert (answer.text, pieces, answer.output_tokens) == ("aapplea", 3, 3)


def test_incremental_text_without_ids_is_told_by_its_text() -> None:
    texts = ["The ", "end ", "of ", "it"]
    events = [
        {"text": t, "meta_info": {"completion_tokens": n, "finish_reason": "stop" * (n == 4)}}
        for n, t in enumerate(texts, 1)
    ]
    assert read(*events)[0].text == "The end of it"
    grown = [{**e, "text": "".join(texts[: n + 1])} for n, e in enumerate(events)]
    assert read(*grown)[0].text == "The end of it"


def test_a_character_in_two_tokens_is_mended_and_counted() -> None:
    answer, pieces = read(generate("a\ufffd", 2), generate("a🎯", 3), generate("a🎯b", 4, "stop"))
    assert (answer.text, pieces) == ("a🎯b", 3)
    # ensure_ascii as some servers have it: one character as two escapes in two events
    split = [chat({"content": "HALF1"}), chat({"content": "HALF2"}, "stop")]
    raw = sse(*split).replace(b"HALF1", b"\\ud83c").replace(b"HALF2", b"\\udfaf")
    halves, _ = read_stream([raw])
    assert halves.text == "🎯"


def test_a_last_event_that_only_closes_is_no_piece() -> None:
    _, pieces = read(generate("a", 1), generate("a b", 2), generate("a b", 2, "length"))
    assert pieces == 2


SPEC = {"spec_verify_ct": 3, "spec_num_proposed_drafts": 9}


@pytest.mark.parametrize("name", ["spec_correct_drafts_histogram", "spec_accept_histogram"])
def test_acceptance_is_read_by_both_names_and_from_all_places(name: str) -> None:
    details = {**SPEC, name: [1, 1, 1]}
    usage = {"choices": [], "usage": USAGE}
    meta = chat({"content": "a"}, "stop")
    meta["choices"][0]["meta_info"] = details
    for events in (
        [generate("a", 7, "length", **details)],
        [
            chat({"content": "a"}, "stop"),
            {"choices": [], "sglext": {"spec_tokens_details": details}},
            usage,
        ],
        [meta, usage],
    ):
        answer, _ = read(*events)
        assert answer.accepted_histogram == (1, 1, 1)
        assert (answer.verify_steps, answer.drafted_tokens) == (3, 9)
        assert answer.output_tokens == 7


@pytest.mark.parametrize("meta", [{}, {"spec_verify_ct": 0}, {"spec_accept_histogram": []}])
def test_no_verify_steps_are_missing_and_not_zero(meta: dict[str, Any]) -> None:
    answer, _ = read(generate("a", 1, "length", **meta))
    assert (answer.verify_steps, answer.accepted_histogram) == (None, None)


@pytest.mark.parametrize(
    ("raw", "fault", "words"),
    [
        (sse(generate("a", 1), {"error": {"message": "no memory"}}), StreamFault.SERVER, "memory"),
        (sse({"object": "error", "message": "bad"}), StreamFault.SERVER, "bad"),
        (b'{"detail": "not now"}', StreamFault.SERVER, "not now"),
        (sse(generate("a", 1), done=False), StreamFault.TRUNCATED, "without a finish"),
        (sse(generate("a", 1)), StreamFault.TRUNCATED, "without a finish"),
        (sse(generate("a", 1, "abort")), StreamFault.TRUNCATED, "aborted"),
        (sse(generate("a", 1, "length"))[:-60], StreamFault.TRUNCATED, "not JSON"),
        (b"", StreamFault.TRUNCATED, "without a finish"),
        (b"data: \xff\xfe\n\n", StreamFault.TRUNCATED, "not JSON"),
        (b"data: 3\n\n", StreamFault.SERVER, "no object"),
    ],
)
def test_a_broken_stream_says_why(raw: bytes, fault: StreamFault, words: str) -> None:
    answer, _ = read_stream([raw])
    assert answer.fault is fault
    assert words in (answer.error or "")


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    read_stream([b"data: " + raw + b"\n\n", raw])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "usage",
                    "meta_info",
                    "text",
                    "content",
                    "tool_calls",
                    "error",
                    "completion_tokens",
                    "finish_reason",
                    "output_ids",
                    "spec_accept_histogram",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(st.lists(JSON, max_size=4))
def test_no_json_breaks_the_reader(events: list[Any]) -> None:
    read_stream([sse(*events)])
