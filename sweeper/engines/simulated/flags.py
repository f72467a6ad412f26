"""SGLang's command line: the flags of one release, parsed as its argparse parses them."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

VERSION = "0.5.23"
_TABLE = Path(__file__).parent.parent / f"flags_{VERSION.replace('.', '_')}.json"

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9}


def _human_readable_int(text: str) -> int:
    suffix = text[-1:].lower()
    if suffix in _UNITS:
        return int(float(text[:-1]) * _UNITS[suffix])
    return int(text)


def _nullable_str(text: str) -> str | None:
    return None if text in ("", "None") else text


def _json_list(text: str) -> list[object]:
    value = json.loads(text)
    if not isinstance(value, list):
        raise argparse.ArgumentTypeError(f"Invalid JSON list: {text}")
    return value


def _cuda_graph_backend(text: str) -> str:
    if text == "tc_piecewise":
        raise argparse.ArgumentTypeError(
            "tc_piecewise was removed; select breakable, full, or disabled"
        )
    return text


def _json(text: str) -> object:
    return json.loads(text)


#: Name of a type in the table -> what reads it. An unknown name is read as text.
_TYPES: Mapping[str, Callable[[str], object]] = {
    "str": str,
    "int": int,
    "float": float,
    "loads": _json,
    "human_readable_int": _human_readable_int,
    "json_list_type": _json_list,
    "nullable_str": _nullable_str,
    "parse_cuda_graph_config_arg": _json,
    "parse_cuda_graph_backend_arg": _cuda_graph_backend,
}


def build_parser(table: Mapping[str, Any]) -> argparse.ArgumentParser:
    """Return a parser of all flags in `table`, the content of a `flags_*.json`."""
    parser = argparse.ArgumentParser(prog="sglang serve")
    aliases: dict[str, list[str]] = {}
    for alias, name in table["aliases"].items():
        aliases.setdefault(name, []).append(alias)
    for name, flag in table["flags"].items():
        words = [f"--{word}" for word in (name, *aliases.get(name, ()))]
        add = partial(parser.add_argument, *words, dest=flag["dest"], default=flag["default"])
        if "negation" in flag:
            add(action=argparse.BooleanOptionalAction)
        elif not flag["takes_value"]:
            add(action="store_const", const=flag.get("const", True))
        else:
            add(
                type=_TYPES.get(flag["type"], str),
                choices=flag["choices"],
                nargs=flag["nargs"],
                required=flag.get("required", False),
            )
    return parser


def parse(argv: Sequence[str]) -> dict[str, Any]:
    """Return dest -> value of every flag.

    `serve` and a model in first place are taken as `sglang serve` takes them. Unlike SGLang,
    `--config` is refused: no YAML is read here.

    Raises:
        SystemExit: The command line is wrong (2) or asks for help (0).
    """
    words = list(argv)
    if words[:1] == ["serve"]:
        words = words[1:]
    if words and not words[0].startswith("-"):
        words = ["--model-path", *words]
    parser = build_parser(json.loads(_TABLE.read_text()))
    args = vars(parser.parse_args(words))
    if args.get("config") is not None:
        parser.error("argument --config: not read by the simulated server")
    return args
