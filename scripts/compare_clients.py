"""Measure one running server with this project's client and with SGLang's, in turn.

    python -m scripts.compare_clients URL --tokenizer MODEL --output FILE.json

Both send the same salted prompts, greedy, with the same number of answer tokens, to `/generate`,
on an emptied cache. Each load is measured as often as `--rounds` says by each client, in turn, so
that a drift of the machine meets both. The file holds what each said.
"""

import argparse
import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sweeper.bench.measure import measure
from sweeper.bench.process import ClientProcess
from sweeper.bench.workload import load_prompts, one_pass, salted
from sweeper.clock import Clock
from sweeper.records import Limits, Workload

LOADS = (
    Workload(name="single", concurrency=1, max_tokens=400, repeats=1),
    Workload(name="sixteen", concurrency=16, max_tokens=96, repeats=1, warmup=16),
)
#: Our name -> the name in the other client's file; both in ms and tok/s.
NAMES = {
    "output_tok_s": "output_throughput",
    "ttft_p50_ms": "median_ttft_ms",
    "ttft_p99_ms": "p99_ttft_ms",
    "tpot_p50_ms": "median_tpot_ms",
    "tpot_p99_ms": "p99_tpot_ms",
    "e2e_p50_ms": "median_e2e_latency_ms",
}


def ours(client: ClientProcess, url: str, load: Workload, salt: str) -> dict[str, Any]:
    """Measure with this project's client and return the measurement as a mapping."""
    found, _ = measure(
        client,
        url=url,
        model="",
        workload=load,
        gpus=1,
        clock=Clock(),
        limits=Limits(),
        salt=salt,
    )
    return asdict(found)


def theirs(url: str, load: Workload, salt: str, tokenizer: str) -> dict[str, Any]:
    """Measure with `sglang.bench_serving` and return the line that it writes.

    Raises:
        CalledProcessError: It failed.
    """
    prompts = one_pass(load_prompts(load.prompts), load.concurrency)
    with tempfile.TemporaryDirectory() as folder:
        data, result = Path(folder, "prompts.jsonl"), Path(folder, "result.jsonl")
        lines = []
        for index, prompt in enumerate(prompts):
            text = salted(prompt, f"{salt}/{load.name}/{load.seed}", 0, index).text
            turns = [{"content": text}, {"content": "an answer"}]
            lines.append(json.dumps({"conversations": turns}))
        data.write_text("\n".join(lines), encoding="utf-8")
        subprocess.run(
            [
                *(sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang"),
                *("--base-url", url, "--dataset-name", "custom", "--dataset-path", str(data)),
                *("--num-prompts", str(len(prompts)), "--tokenizer", tokenizer),
                *("--sharegpt-output-len", str(load.max_tokens), "--flush-cache"),
                *("--max-concurrency", str(load.concurrency), "--disable-tqdm"),
                *("--warmup-requests", str(load.warmup), "--output-file", str(result)),
            ],
            check=True,
            stdout=sys.stderr,
        )
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8").splitlines()[-1])
        return found


def table(rounds: Sequence[dict[str, Any]]) -> str:
    """Return a table of means over the rounds: load, number, ours, theirs, difference in %."""
    lines = [
        "| load | number | sweeper | sglang.bench_serving | difference |",
        "|---|---|---|---|---|",
    ]
    rounds = [r for r in rounds if r["sglang"] is not None]
    for load in dict.fromkeys(r["load"] for r in rounds):
        for mine, other in NAMES.items():
            pairs = [(r["sweeper"][mine], r["sglang"][other]) for r in rounds if r["load"] == load]
            a, b = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
            lines.append(f"| {load} | {mine} | {a:.4g} | {b:.4g} | {(a / b - 1) * 100:+.1f} % |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.compare_clients")
    parser.add_argument("url")
    parser.add_argument("--tokenizer", required=True, help="folder of the model")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--single", default="five", help="prompts of the load of one stream")
    parser.add_argument("--sixteen", default="mixed", help="prompts of the other load")
    parser.add_argument("--only-ours", action="store_true", help="leave SGLang's client out")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(argv)
    rounds: list[dict[str, Any]] = []
    with ClientProcess.start() as client:
        for number in range(options.rounds):
            for kind in LOADS:
                load = replace(kind, prompts=getattr(options, kind.name))
                salt = secrets.token_hex(4)
                mine = ours(client, options.url, load, salt)
                other = None
                if not options.only_ours:
                    other = theirs(options.url, load, salt, options.tokenizer)
                rounds.append(
                    {"round": number, "load": load.name, "sweeper": mine, "sglang": other}
                )
                options.output.write_text(json.dumps(rounds, indent=1), encoding="utf-8")
    sys.stdout.write(table(rounds) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
