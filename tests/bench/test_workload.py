"""Prompt sets, salts, bodies and arrivals."""

import itertools
import json
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.bench.workload import (
    PATHS,
    WARMUP_SET,
    Prompt,
    arrivals,
    load_arrivals,
    load_prompts,
    one_pass,
    request_body,
    salted,
)
from sweeper.errors import UserError

KINDS = {"chat", "code", "maths", "translation", "summary"}


@pytest.mark.parametrize(("name", "least"), [("five", 5), ("mixed", 80)])
def test_shipped_sets_hold_all_kinds(name: str, least: int) -> None:
    prompts = load_prompts(name)
    assert len(prompts) >= least
    assert {p.kind for p in prompts} == KINDS


def test_no_text_stands_in_two_sets() -> None:
    texts = [p.text for name in ("five", "mixed", WARMUP_SET) for p in load_prompts(name)]
    assert len(texts) == len(set(texts))


def test_an_unknown_set_is_told_with_those_that_exist() -> None:
    with pytest.raises(UserError, match="no prompt set or file 'fvie'; shipped sets: five, mixed"):
        load_prompts("fvie")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_line_of_json_may_hold_what_ends_lines_elsewhere(tmp_path: Path, end: str) -> None:
    path = tmp_path / "web.jsonl"
    texts = [f"before{mark}after" for mark in ("\u2028", "\u2029", "\x85")]
    lines = (json.dumps({"prompt": text}, ensure_ascii=False) for text in texts)
    path.write_bytes("".join(line + end for line in lines).encode())
    assert [p.text for p in load_prompts(str(path))] == texts
    path.write_bytes((json.dumps({"prompt": texts[0]}, ensure_ascii=False) + end + "{").encode())
    with pytest.raises(UserError, match=r"web\.jsonl:2: not JSON"):
        load_prompts(str(path))


def test_sharegpt_is_read_up_to_the_first_request(tmp_path: Path) -> None:
    path = tmp_path / "share.json"
    turns = [
        {"from": "system", "value": "Be kind."},
        {"from": "human", "value": "Hello?"},
        {"from": "gpt", "value": "Hi."},
        {"from": "human", "value": "More."},
    ]
    path.write_text(json.dumps([{"id": "c1", "conversations": turns}]))
    (prompt,) = load_prompts(str(path))
    assert prompt.id == "c1"
    assert [m["role"] for m in prompt.messages] == ["system", "user"]


@given(st.integers(1, 200), st.integers(1, 20))
def test_a_pass_fills_all_streams_with_whole_sets(concurrency: int, size: int) -> None:
    prompts = tuple(Prompt(id=str(i), text="x") for i in range(size))
    sent = one_pass(prompts, concurrency)
    assert len(sent) >= concurrency
    assert len(sent) % size == 0
    assert len(sent) - size < concurrency


def test_salts_differ_in_every_place_and_repeat_themselves() -> None:
    prompt = Prompt(id="a", text="same")
    keys = list(itertools.product(("s", "t"), range(3), range(3)))
    texts = [salted(prompt, *key).text for key in keys]
    assert len({text[:16] for text in texts}) == len(keys)
    assert texts == [salted(prompt, *key).text for key in keys]
    assert all(text.endswith("same") for text in texts)


@pytest.mark.parametrize("content", ["hello", [{"type": "text", "text": "hello"}], None])
def test_messages_are_salted_at_their_very_beginning(content: Any) -> None:
    messages = ({"role": "user", "content": content}, {"role": "user", "content": "end"})
    first, second = salted(Prompt(id="a", messages=messages), "s", 0, 0).messages
    start = first["content"] if isinstance(first["content"], str) else first["content"][0]["text"]
    assert start.startswith("[")
    assert second == messages[1]


@pytest.mark.parametrize("route", PATHS)
@pytest.mark.parametrize("chat", [False, True])
def test_every_prompt_can_be_sent_on_every_route(route: str, chat: bool) -> None:
    messages = ({"role": "system", "content": "S"}, {"role": "user", "content": "U"})
    prompt = Prompt(id="a", messages=messages) if chat else Prompt(id="a", text="U")
    body = request_body(
        prompt, route=route, model="m", max_tokens=5, temperature=0.5, ignore_eos=True
    )
    assert body["stream"] is True
    if route == "generate":
        assert body["sampling_params"] == {
            "max_new_tokens": 5,
            "temperature": 0.5,
            "ignore_eos": True,
        }
    else:
        assert (body["model"], body["max_tokens"], body["ignore_eos"]) == ("m", 5, True)
        assert body["stream_options"] == {"include_usage": True}
    plain = body.get("text", body.get("prompt"))
    if plain is not None:
        assert plain == ("System: S\n\nUser: U\n\nAssistant:" if chat else "U")


def test_arrivals_are_poisson_and_repeat_themselves() -> None:
    times = list(itertools.islice(arrivals(50.0, "a"), 4000))
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert mean(gaps) == pytest.approx(1 / 50, rel=0.1)
    assert mean(g * g for g in gaps) == pytest.approx(2 / 50**2, rel=0.2)
    assert times == list(itertools.islice(arrivals(50.0, "a"), 4000))
    assert times[:5] != list(itertools.islice(arrivals(50.0, "b"), 5))


def test_a_ramp_grows_evenly_to_its_rate() -> None:
    times = list(itertools.islice(arrivals(100.0, "s", 10.0), 3000))
    assert times == sorted(times)
    for until_s, expected in ((5.0, 125), (10.0, 500), (20.0, 1500)):
        assert sum(t < until_s for t in times) == pytest.approx(expected, rel=0.2)


@pytest.mark.parametrize(
    "lines",
    [["3", "1.5", "2"], ['{"timestamp": 3}', '{"timestamp": 1.5}', "", '{"at_s": 2, "id": 7}']],
)
def test_a_trace_counts_from_its_first_arrival_whatever_the_order(
    tmp_path: Path, lines: list[str]
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    assert load_arrivals(str(path)) == (0.0, 0.5, 1.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "holds no arrival"), ("1\nx", ":2: not JSON"), ("true", ":1: expected seconds"),
     ('{"when": 1}', ":1: expected seconds"), ("NaN", ":1: expected seconds")],
)  # fmt: skip
def test_a_mistake_in_a_trace_is_told_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        load_arrivals(str(path))


def test_a_trace_has_one_prompt_for_each_arrival() -> None:
    prompts = load_prompts("five")
    assert [p.id for p in one_pass(prompts, None, 7)] == [p.id for p in (*prompts, *prompts[:2])]
