"""The simulated server's own environment: SWEEPER_SIM_* and SWEEPER_TRIAL."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sweeper.engines.simulated.calibrations import CALIBRATIONS, KIMI_LATER, Calibration
from sweeper.engines.simulated.faults import Fault, parse_faults
from sweeper.engines.simulated.noise import Drift


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the environment says.

    Attributes:
        calibration: SWEEPER_SIM_CALIBRATION: the machine and model that are imitated.
        time_scale: SWEEPER_SIM_TIME_SCALE: engine seconds in a real second.
        noise: SWEEPER_SIM_NOISE: factor on all random spread; 0 is none at all.
        drift: SWEEPER_SIM_DRIFT: slow change of the node's speed.
        start_s: SWEEPER_SIM_START_S: engine seconds of a start with speculation and graphs.
        seed: SWEEPER_SIM_SEED.
        trial: SWEEPER_TRIAL, mixed into the noise of this launch.
        children: SWEEPER_SIM_CHILDREN: scheduler processes; 0 keeps the demonstration light.
        faults: SWEEPER_SIM_FAULT.
    """

    calibration: Calibration = KIMI_LATER
    time_scale: float = 1.0
    noise: float = 1.0
    drift: Drift = field(default_factory=Drift)
    start_s: float = 600.0
    seed: int = 0
    trial: str = ""
    children: int = 0
    faults: tuple[Fault, ...] = ()


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Return the settings that `environ` holds.

    Raises:
        ValueError: A variable is malformed; the message names it.
    """
    name = environ.get("SWEEPER_SIM_CALIBRATION") or KIMI_LATER.name
    if name not in CALIBRATIONS:
        known = ", ".join(CALIBRATIONS)
        raise ValueError(f"SWEEPER_SIM_CALIBRATION={name!r} is none of {known}")
    return Settings(
        calibration=CALIBRATIONS[name],
        time_scale=_number(environ, "SWEEPER_SIM_TIME_SCALE", 1.0, above=0.0),
        noise=_number(environ, "SWEEPER_SIM_NOISE", 1.0),
        drift=_drift(environ.get("SWEEPER_SIM_DRIFT") or "0"),
        start_s=_number(environ, "SWEEPER_SIM_START_S", 600.0),
        seed=int(_number(environ, "SWEEPER_SIM_SEED", 0.0)),
        trial=environ.get("SWEEPER_TRIAL", ""),
        children=int(_number(environ, "SWEEPER_SIM_CHILDREN", 0.0)),
        faults=parse_faults(environ.get("SWEEPER_SIM_FAULT", "")),
    )


def _number(
    environ: Mapping[str, str], name: str, default: float, *, above: float | None = None
) -> float:
    text = environ.get(name) or ""
    try:
        value = float(text) if text else default
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a number") from None
    if value < 0 or (above is not None and value <= above):
        raise ValueError(
            f"{name}={text!r} must be {'above' if above is not None else 'at least'} 0"
        )
    return value


_DRIFT = re.compile(r"(?P<rate>-?\d+(?:\.\d*)?)(?:/h@(?P<origin>\d+(?:\.\d+)?))?")


def _drift(text: str) -> Drift:
    match = _DRIFT.fullmatch(text)
    if match is None:
        raise ValueError(
            f"SWEEPER_SIM_DRIFT={text!r} is neither an amplitude such as 0.02 nor a slope such "
            "as 0.01/h@1790000000 (share an engine hour, from that Unix time on)"
        )
    if match["origin"]:
        return Drift(per_hour=float(match["rate"]), origin_unix_s=float(match["origin"]))
    return Drift(amplitude=float(match["rate"]))
