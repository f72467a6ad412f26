"""The shape of a space file, as pydantic models; what stands in no model is a mistake."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from sweeper.records import Limits, Scalar
from sweeper.study import SamplerName

_Text = Annotated[str, Field(min_length=1)]


def _variable(name: str) -> str:
    if not name or any(c in "=\0" or c.isspace() for c in name):
        raise ValueError(f"{name!r} cannot be the name of a variable")
    return name


#: Name of an environment variable.
_Variable = Annotated[str, AfterValidator(_variable)]
YamlFlag = Scalar | list[Scalar]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class SimulationModel(_Model):
    calibration: _Text = "kimi-k2.5-later"
    time_scale: float = Field(default=10.0, gt=0, le=1000)
    start_s: float = Field(default=8.0, ge=0)
    noise: float = Field(default=1.0, ge=0)
    drift: float = 0.0
    seed: int = Field(default=0, ge=0)
    fault: str = ""


class EngineModel(_Model):
    kind: Literal["auto", "sglang", "simulated"] = "auto"
    command: list[_Text] | None = Field(default=None, min_length=1)
    model: _Text
    gpus: int = Field(ge=0, le=1024)
    nodes: int = Field(default=1, ge=1, le=128)
    slots_per_node: int = Field(default=1, ge=1, le=64)
    measure_alone: bool = True
    flags: dict[str, YamlFlag] = {}
    env: dict[_Variable, Scalar] = {}
    known_flags: list[str] = []
    preflight: bool = True
    simulation: SimulationModel = SimulationModel()

    @model_validator(mode="after")
    def _whole_slots(self) -> "EngineModel":
        if self.nodes > 1 and self.slots_per_node > 1:
            raise ValueError("give either 'nodes' or 'slots_per_node': a slot is parts or wholes")
        if self.gpus % self.nodes or (self.nodes > 1 and not self.gpus):
            raise ValueError(
                f"'gpus' counts those of all nodes, so {self.gpus} cannot be shared evenly by "
                f"{self.nodes} 'nodes'"
            )
        return self


class BaselineModel(_Model):
    drop: list[str] = ["speculative-*"]
    flags: dict[str, YamlFlag] = {}
    env: dict[_Variable, Scalar] = {}
    reference_tok_s: float | None = Field(default=None, gt=0)
    every: int | None = Field(default=None, ge=1)


class ChoiceModel(_Model):
    flags: dict[str, YamlFlag] = {}
    env: dict[_Variable, Scalar] = {}


class ParameterModel(_Model):
    flag: _Text | None = None
    env: _Variable | None = None
    values: list[Scalar] | None = Field(default=None, min_length=1)
    choices: dict[str, Any] | None = Field(default=None, min_length=1)
    when: _Text | None = None
    otherwise: Scalar | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> "ParameterModel":
        if (self.values is None) == (self.choices is None):
            raise ValueError("give either 'values' or 'choices'")
        if self.flag and self.env:
            raise ValueError("give either 'flag' or 'env', not both")
        if self.values is not None and not (self.flag or self.env):
            raise ValueError("'values' need the 'flag' or the 'env' that takes them")
        if self.otherwise is not None and self.when is None:
            raise ValueError("'otherwise' needs a 'when'")
        return self


class WorkloadModel(_Model):
    name: _Text
    prompts: _Text = "five"
    concurrency: int | None = Field(default=None, ge=1, le=100_000)
    request_rate: float | None = Field(default=None, gt=0)
    max_tokens: int = Field(default=500, ge=1)
    repeats: int | None = Field(default=None, ge=1)
    duration_s: float | None = Field(default=None, gt=0)
    warmup: int = Field(default=1, ge=0)
    temperature: float = Field(default=0.0, ge=0)
    ignore_eos: bool = True
    route: Literal["generate", "completions", "chat"] = "generate"
    seed: int = Field(default=0, ge=0)
    arrivals: _Text | None = None
    ramp_s: float = Field(default=0.0, ge=0)
    chat_template: Literal["auto", "always", "never"] = "auto"

    @model_validator(mode="after")
    def _one_load(self) -> "WorkloadModel":
        if sum(x is not None for x in (self.concurrency, self.request_rate, self.arrivals)) > 1:
            raise ValueError("give one of 'concurrency', 'request_rate' and 'arrivals'")
        if self.arrivals is not None and self.ramp_s:
            raise ValueError("'arrivals' says when each request is sent, so there is no 'ramp_s'")
        if self.repeats is not None and self.duration_s is not None:
            raise ValueError("give either 'repeats' or 'duration_s'")
        return self


class ObjectiveModel(_Model):
    maximize: _Text | None = None
    minimize: _Text | None = None
    workload: _Text | None = None

    @model_validator(mode="after")
    def _one_direction(self) -> "ObjectiveModel":
        if (self.maximize is None) == (self.minimize is None):
            raise ValueError("give either 'maximize' or 'minimize'")
        return self


class BudgetModel(_Model):
    launches: int = Field(default=40, ge=1)
    hours: float | None = Field(default=None, gt=0)
    confirm: int = Field(default=0, ge=0)
    prune_confidence: float | None = Field(default=None, gt=0.5, lt=1)

    @model_validator(mode="after")
    def _something_to_confirm(self) -> "BudgetModel":
        if self.confirm and self.confirm > self.launches - 2:
            raise ValueError(
                "'confirm' is a part of 'launches' and must leave two for the baseline and a setting"
            )
        return self


class LimitsModel(_Model):
    start_s: float = Field(default=Limits().start_s, gt=0)
    silence_s: float = Field(default=Limits().silence_s, gt=0)
    stop_s: float = Field(default=Limits().stop_s, gt=0)
    memory_free_s: float = Field(default=Limits().memory_free_s, gt=0)
    progress_s: float = Field(default=Limits().progress_s, gt=0)
    probe_s: float = Field(default=Limits().probe_s, gt=0)


class SpaceFile(_Model):
    study: str = Field(pattern=r"^[\w][\w.-]{0,63}$")
    engine: EngineModel
    baseline: BaselineModel = BaselineModel()
    parameters: dict[str, ParameterModel] = Field(min_length=1)
    constraints: list[_Text] = []
    known: list[dict[str, Scalar]] = []
    workloads: list[WorkloadModel] = Field(min_length=1)
    objectives: list[ObjectiveModel] = Field(min_length=1)
    slo: list[_Text] = []
    budget: BudgetModel = BudgetModel()
    sampler: SamplerName = "auto"
    seed: int = Field(default=0, ge=0)
    limits: LimitsModel = LimitsModel()
