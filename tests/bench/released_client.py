"""Runs the benchmark client of a released SGLang without installing SGLang.

    python released_client.py FOLDER ARGUMENTS...      FOLDER holds the unzipped wheel

Of SGLang only `sglang.benchmark` is executed; the package's own `__init__` needs torch and is left
out. What the client imports and does not need here (transformers for a tokenizer, server code for
two helpers) is replaced by stand-ins. The client itself is untouched.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar


class Words:
    """A tokenizer by words; SGLang's client only counts with it."""

    init_kwargs: ClassVar[dict[str, object]] = {}
    bos_token = ""

    @classmethod
    def from_pretrained(cls, *_: object, **__: object) -> "Words":
        return cls()

    def encode(self, text: str, **_: object) -> list[int]:
        return list(range(len(text.split())))

    def decode(self, ids: Sequence[int], **_: object) -> str:
        return " ".join(map(str, ids))

    def num_special_tokens_to_add(self, *_: object, **__: object) -> int:
        return 0


class StandIn(types.ModuleType):
    """A module in which every name is something."""

    __path__: ClassVar[list[str]] = []  # type: ignore[misc]

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins for modules that are not installed, as the last resort."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in {"PIL", "datasets", "pybase64", "psutil", "zmq"}:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing."""


def package(name: str, folder: Path) -> None:
    """Make a package known without executing its __init__."""
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module


def main(folder: Path, arguments: Sequence[str]) -> None:
    """Run the client's own command line."""
    sys.meta_path.append(StandIns())
    root = folder / "sglang"
    for name in ("sglang", "sglang.srt", "sglang.srt.utils", "sglang.srt.disaggregation"):
        package(name, root.joinpath(*name.split(".")[1:]))
    disaggregation = types.ModuleType("sglang.srt.disaggregation.utils")
    disaggregation.FAKE_BOOTSTRAP_HOST = "2.2.2.2"  # type: ignore[attr-defined]
    sys.modules[disaggregation.__name__] = disaggregation
    transformers = StandIn("transformers")
    transformers.AutoTokenizer = Words  # type: ignore[attr-defined]
    sys.modules["transformers"] = transformers
    sys.argv = ["bench_serving", *arguments]
    importlib.import_module("sglang.benchmark.serving").cli_main()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
