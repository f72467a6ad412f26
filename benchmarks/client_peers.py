"""Command lines of other people's tools on the benchmark's server, and the lags that they tell.

Each is the tool's own program in an environment of its own:

    python -m venv peers/guidellm && peers/guidellm/bin/pip install guidellm==0.8.1
    python -m venv peers/aiperf && peers/aiperf/bin/pip install aiperf==0.13.0
    python -m venv peers/sglang && peers/sglang/bin/pip install aiohttp msgspec numpy orjson \
        requests tqdm && peers/sglang/bin/pip install --no-deps --target peers/wheel sglang==0.5.23

For SGLang the benchmark client alone is run, out of its wheel (`tests/bench/released_client.py`).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PROMPT = "paced prompt of some words"
#: A tool's own limit on the sockets of one process must not be what is measured.
_ENVIRONMENT = {
    "AIPERF_HTTP_CONNECTION_LIMIT": "2500",
    "GUIDELLM__LOGGING__DISABLED": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a tool.

    Attributes:
        python: The Python of its environment.
        url: The server.
        streams: Streams at once; as many requests are sent.
        chunks: Chunks of each answer.
        folder: Where it may write.
    """

    python: Path
    url: str
    streams: int
    chunks: int
    folder: Path


def sglang(run: Run) -> list[str]:
    """Return the command of `sglang.bench_serving`; the wheel lies beside its environment."""
    data = run.folder / "data.jsonl"
    row = {"conversations": [{"content": _PROMPT}, {"content": "an answer"}]}
    data.write_text("\n".join([json.dumps(row)] * run.streams), encoding="utf-8")
    wheel = next(
        (p for p in (run.python.parents[2] / "wheel", run.python.parent / "wheel") if p.is_dir()),
        run.python.parents[2],
    )
    return [
        *(str(run.python), str(ROOT / "tests" / "bench" / "released_client.py"), str(wheel)),
        *("--backend", "sglang-oai", "--base-url", run.url, "--model", "m"),
        *("--dataset-name", "custom", "--dataset-path", str(data), "--tokenizer", "words"),
        *("--num-prompts", str(run.streams), "--sharegpt-output-len", str(run.chunks)),
        *("--max-concurrency", str(run.streams), "--disable-tqdm", "--warmup-requests", "0"),
        *("--output-file", str(run.folder / "out.jsonl"), "--output-details"),
    ]


def guidellm(run: Run) -> list[str]:
    """Return the command of guidellm."""
    data = run.folder / "data.jsonl"
    row = {"prompt": _PROMPT, "output_tokens_count": run.chunks}
    data.write_text("\n".join([json.dumps(row)] * run.streams), encoding="utf-8")
    backend = {
        "kind": "openai_http",
        "target": run.url,
        "model": "m",
        "request_format": "/v1/completions",
    }
    return [
        *(str(run.python.with_name("guidellm")), "run", "--backend", json.dumps(backend)),
        *("--profile", json.dumps({"kind": "concurrent", "streams": [run.streams]})),
        *("--constraint", json.dumps({"kind": "max_requests", "count": run.streams})),
        *("--data", json.dumps({"kind": "json_file", "path": str(data)})),
        *("--output", json.dumps({"kind": "json", "path": str(run.folder / "out.json")})),
        "--disable-console",
    ]


def aiperf(run: Run) -> list[str]:
    """Return the command of aiperf."""
    data = run.folder / "data.jsonl"
    data.write_text("\n".join([json.dumps({"text": _PROMPT})] * run.streams), encoding="utf-8")
    return [
        *(str(run.python.with_name("aiperf")), "profile", "--model", "m", "--url", run.url),
        *("--endpoint-type", "completions", "--streaming", "--tokenizer", _tokenizer(run.folder)),
        *("--custom-dataset-type", "single_turn", "--input-file", str(data)),
        *("--concurrency", str(run.streams), "--request-count", str(run.streams)),
        *("--use-server-token-count", "--no-gpu-telemetry", "--no-server-metrics"),
        *("--ui", "none", "--output-artifact-dir", str(run.folder / "artifacts")),
        *("--extra-inputs", f"max_tokens:{run.chunks}"),
    ]


def _tokenizer(folder: Path) -> str:
    """Write a tokenizer by words and return its folder; what a tool brings it would download."""
    place = folder / "tokenizer"
    place.mkdir()
    model = {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}
    whole = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}}
    (place / "tokenizer.json").write_text(json.dumps(whole | {"model": model}), encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    (place / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(place)


def sglang_lags(folder: Path) -> list[float]:
    """Return each chunk's lag in ns above the least of its stream.

    The tool tells when a chunk came since its request was sent, and not when that was; so the
    quickest chunk of each stream is taken for one without lag, and this is a lower bound.
    """
    told = json.loads((folder / "out.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    found: list[float] = []
    for ttft, itls, text in zip(told["ttfts"], told["itls"], told["generated_texts"], strict=True):
        came = [s * 1e9 for s in accumulate([ttft, *itls])]
        lags = [c - int(stamp) for c, stamp in zip(came, text.split(), strict=True)]
        found += [lag - min(lags) for lag in lags]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another tool.

    Attributes:
        command: Makes its command line.
        lags: Reads the lags of its chunks; None if it does not tell them.
    """

    command: Callable[[Run], Sequence[str]]
    lags: Callable[[Path], list[float]] | None = None


PEERS: Mapping[str, Peer] = {
    "sglang": Peer(command=sglang, lags=sglang_lags),
    "guidellm": Peer(command=guidellm),
    "aiperf": Peer(command=aiperf),
}


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a tool: nothing of this project's own Python."""
    kept = {k: v for k, v in inherited.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**kept, **_ENVIRONMENT}
