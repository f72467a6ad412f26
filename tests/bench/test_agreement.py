"""The instrument against SGLang's own benchmark client, on the same server and load.

It needs the unzipped wheel of a released SGLang and a Python with what its client imports:

    pip download --no-deps sglang==0.5.23 && python -m zipfile -e sglang-*.whl WHEEL
    python -m venv CLIENT && CLIENT/bin/pip install aiohttp msgspec numpy orjson requests tqdm
    SWEEPER_SGLANG_WHEEL=WHEEL SWEEPER_SGLANG_PYTHON=CLIENT/bin/python pytest -m sglang
"""

import json
import os
import subprocess
from pathlib import Path
from statistics import mean

import pytest

from sweeper.bench.measure import measure
from sweeper.bench.process import ClientProcess
from sweeper.bench.workload import load_prompts
from sweeper.clock import Clock
from sweeper.records import Limits, RequestTiming, Workload
from tests.bench.test_calibration import ATTEMPTS, SPECULATION, TOLERANCE, simulated

WHEEL = os.environ.get("SWEEPER_SGLANG_WHEEL", "")
PYTHON = os.environ.get("SWEEPER_SGLANG_PYTHON", "")
TOKENS = 150
#: Characters put behind each prompt: a prefill of half a second, so that 1 % of it can be told.
FILLING = 32_000


def released(url: str, prompts: list[str], concurrency: int, folder: Path) -> dict[str, float]:
    """Return what SGLang's client measures."""
    data, out = folder / "data.jsonl", folder / "out.jsonl"
    rows = [{"conversations": [{"content": p}, {"content": "an answer"}]} for p in prompts]
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    out.unlink(missing_ok=True)
    subprocess.run(
        [
            *(PYTHON, str(Path(__file__).with_name("released_client.py")), WHEEL),
            *("--backend", "sglang", "--base-url", url, "--model", "/models/kimi"),
            *("--dataset-name", "custom", "--dataset-path", str(data), "--tokenizer", "words"),
            *("--num-prompts", str(len(prompts)), "--sharegpt-output-len", str(TOKENS)),
            *("--max-concurrency", str(concurrency), "--flush-cache", "--disable-tqdm"),
            *("--output-file", str(out), "--warmup-requests", "0"),
        ],
        check=True,
        capture_output=True,
        timeout=200,
    )
    told = json.loads(out.read_text(encoding="utf-8").splitlines()[-1])
    return {
        "ttft_ms": told["mean_ttft_ms"],
        "tpot_ms": told["mean_tpot_ms"],
        "output_tok_s": told["output_throughput"],
    }


def ours(
    url: str, prompts: list[str], concurrency: int, folder: Path, client: ClientProcess
) -> dict[str, float]:
    """Return what this project's client measures."""
    data = folder / "prompts.jsonl"
    data.write_text("\n".join(json.dumps({"prompt": p}) for p in prompts), encoding="utf-8")
    measured, requests = measure(
        client,
        url=url,
        model="/models/kimi",
        workload=Workload(
            name="same",
            prompts=str(data),
            concurrency=concurrency,
            max_tokens=TOKENS,
            warmup=0,
        ),
        gpus=8,
        clock=Clock(),
        limits=Limits(),
        salt="agreement",
    )
    assert measured.failed_requests == 0
    assert measured.output_tok_s is not None
    return {
        "ttft_ms": mean(((r.first_ns or 0) - r.sent_ns) / 1e6 for r in requests),
        "tpot_ms": mean(tpot_ms(r) for r in requests),
        "output_tok_s": measured.output_tok_s,
    }


def tpot_ms(request: RequestTiming) -> float:
    tokens = (request.output_tokens or 0) - 1
    return ((request.last_ns or 0) - (request.first_ns or 0)) / tokens / 1e6


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.skipif(
    not (WHEEL and PYTHON),
    reason="SWEEPER_SGLANG_WHEEL and SWEEPER_SGLANG_PYTHON do not say where SGLang's client is",
)
@pytest.mark.parametrize("concurrency", [1, 8])
def test_both_clients_agree_within_one_percent(concurrency: int, tmp_path: Path) -> None:
    texts = [p.text for p in load_prompts("five")]
    if concurrency > 1:
        # SGLang's client shuffles, and which answers run together changes their times.
        texts = texts[:1] * 16
    prompts = [f"{text}\n\n{'word ' * (FILLING // 5)}{i}" for i, text in enumerate(texts)]
    differ: dict[str, list[float]] = {}
    # One client salts its prompts and the other one does not.
    flags = (*SPECULATION.split(), "--disable-radix-cache")
    with simulated(*flags) as url, ClientProcess.start() as client:
        for _ in range(ATTEMPTS):
            theirs = released(url, prompts, concurrency, tmp_path)
            mine = ours(url, prompts, concurrency, tmp_path, client)
            for name, value in mine.items():
                differ.setdefault(name, []).append(abs(value / theirs[name] - 1))
            if all(min(found) <= TOLERANCE for found in differ.values()):
                return
    pytest.fail(f"relative differences by attempt: {differ}")
