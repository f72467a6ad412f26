"""The SGLang engine: command line, environment, canonical form, probes and read-back.

Behaviour was read in the sources of 0.5.15 and 0.5.23 and seen by running both, and 0.5.17 on
GPUs. The simulated server speaks the same language, so nothing here asks which one it is.
"""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sweeper.engines import sglang_flags, sglang_readback, sglang_rules
from sweeper.engines.base import ControlRequest, flag_words
from sweeper.engines.sglang_log import SGLangLogReader
from sweeper.engines.sglang_rewrites import Setting, rewrite
from sweeper.records import FlagValue, Launch, ServerFacts

#: What measuring needs and the user did not set. The interval of the decode lines stays SGLang's
#: own: at 10 steps the lines took up to 2 % of a speculative step and less of a plain
#: one (docs/evidence/h200.md), which is unfair to speculation.
_MEASURING: Mapping[str, FlagValue] = {"enable-metrics": True}

#: A crash otherwise waits up to 65 s for stack and core dumps that nobody reads.
_ENVIRONMENT: Mapping[str, str] = {
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
    # Access lines go to stdout, the rest to stderr: unbuffered they stay in order.
    "PYTHONUNBUFFERED": "1",
}
#: Flags that may name something on a hub, beside the model.
_FROM_A_HUB = (
    "speculative-draft-model-path",
    "speculative-token-map",
    "tokenizer-path",
    "lora-paths",
)


class SGLang:
    """SGLang 0.5.15 to 0.5.23, real or simulated; satisfies `engines.base.Engine`."""

    name = "sglang"

    def argv(self, launch: Launch, *, port: int, nccl_port: int) -> list[str]:
        """Return the whole command line; no shell ever sees it."""
        flags = _with_full_names(launch.flags)
        words = [*launch.command, "--model-path", launch.model]
        words += flag_words({**_MEASURING, **flags})
        words += ["--host", "127.0.0.1", "--port", str(port)]
        if "nccl-port" not in flags:
            words += ["--nccl-port", str(nccl_port)]
        return words

    def environment(self, launch: Launch) -> dict[str, str]:
        """Return the variables that the server is started with; the launch's own win."""
        return {**_base_environment(launch), **launch.env}

    def canonical(self, launch: Launch) -> Launch:
        """Return the launch that SGLang makes of this one; applying it twice changes nothing.

        A flag set twice to different values is left so, for `refuse`.
        """
        if _named_twice(launch.flags):
            return launch
        asked = _setting(launch)
        setting = rewrite(asked)
        flags = {**setting.flags, **_kept_for_measuring(asked.flags)}
        for name, value in _MEASURING.items():
            if flags.get(name) == value:
                del flags[name]
        made = replace(launch, flags=dict(sorted(flags.items())))
        base = _base_environment(made)
        env = {k: v for k, v in sorted(setting.env.items()) if base.get(k) != v}
        return replace(made, env=env)

    def refuse(self, launch: Launch) -> str | None:
        """Return why this launch cannot work, in a sentence, or None."""
        twice = _named_twice(launch.flags)
        if twice:
            return f"--{twice[0]} and --{twice[1]} are one flag, and are set to different values"
        return sglang_rules.refuse(rewrite(_setting(launch)))

    def unknown_flags(self, flags: Sequence[str]) -> dict[str, str | None]:
        """Return each flag that no supported version knows -> the nearest known one."""
        return {
            name: sglang_flags.nearest(name) for name in flags if not sglang_flags.is_known(name)
        }

    def log_reader(self) -> SGLangLogReader:
        """Return a fresh reader."""
        return SGLangLogReader()

    def health_probe(self) -> ControlRequest:
        """Return the health check: 503 until SGLang's own warm-up request was answered.

        That request comes a second after the port accepts, and what it is batched with is no
        measurement. The check itself makes a token and takes a second.
        """
        return ControlRequest(method="GET", path="/health")

    def ready_probe(self) -> ControlRequest:
        """Return a short greedy generation.

        Health routes answer 200 while the scheduler is dead, and a draft that does not fit
        dies at its first verify step, so a few real tokens are asked for. Token numbers are
        sent, not text: a server without a tokenizer takes them too.
        """
        sampling = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": [1, 2, 3, 4], "sampling_params": sampling}
        return ControlRequest(method="POST", path="/generate", json=body)

    def info_probe(self) -> ControlRequest:
        """Return the request for all resolved arguments; it hangs where the scheduler does."""
        return ControlRequest(method="GET", path="/server_info")

    def read_back(self, launch: Launch, info: Mapping[str, object], *, port: int) -> ServerFacts:
        """Return what the server says it runs.

        Raises:
            LaunchFailed: The answer is another server's (class foreign_server), or the server
                has no draft TP though the launch asked for one (class config_rejected).
        """
        asked = _with_full_names(launch.flags)
        draft_tp = rewrite(_setting(launch)).env.get("SWEEPER_DRAFT_TP")
        return sglang_readback.read(
            info, model=launch.model, asked=asked, draft_tp=draft_tp, port=port
        )

    def flush_request(self) -> ControlRequest:
        """Return the request that empties the prefix cache and the acceptance counters.

        A server that is not idle answers 400.
        """
        return ControlRequest(method="POST", path="/flush_cache")

    def abort_request(self) -> ControlRequest:
        """Return the request that ends all running requests, so that a stop need not wait."""
        return ControlRequest(method="POST", path="/abort_request", json={"abort_all": True})

    def stop_signal(self) -> int:
        """Return SIGINT: an idle server is gone in 0.5 to 2 s, by that signal at last (-2).

        SIGTERM takes 4 to 6 s, since it looks every 5 s whether requests have drained, and
        0.5.15 then kills itself (-9), which reads like a crash.
        """
        return int(signal.SIGINT)


def _kept_for_measuring(asked: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
    """Return flags that would get our value if they were dropped for having their default."""
    return {name: asked[name] for name in _MEASURING if name in asked}


def _base_environment(launch: Launch) -> dict[str, str]:
    env = dict(_ENVIRONMENT)
    flags = _with_full_names(launch.flags)
    named = [launch.model, *(flags[name] for name in _FROM_A_HUB if name in flags)]
    if all(_is_path(one) for one in named):
        env["HF_HUB_OFFLINE"] = "1"
    return env


def _is_path(model: FlagValue) -> bool:
    return isinstance(model, str) and model.startswith(("/", "./", "../", "~"))


def _setting(launch: Launch) -> Setting:
    flags = {n: sglang_flags.typed(n, v) for n, v in _with_full_names(launch.flags).items()}
    return Setting(flags=flags, env=dict(launch.env), gpus=launch.gpus)


def _with_full_names(flags: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
    """Return flags under their full names; of two spellings of one flag the full one stays."""
    spelt = {sglang_flags.full_name(name): value for name, value in sorted(flags.items())}
    return spelt | {name: value for name, value in flags.items() if name in spelt}


def _named_twice(flags: Mapping[str, FlagValue]) -> tuple[str, str] | None:
    seen: dict[str, str] = {}
    for name in sorted(flags):
        full = sglang_flags.full_name(name)
        other = seen.setdefault(full, name)
        if other != name and sglang_flags.typed(full, flags[other]) != sglang_flags.typed(
            full, flags[name]
        ):
            return other, name
    return None
