"""Checked models -> the records of a study; mistakes that the schema cannot see."""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml.comments import CommentedMap

from sweeper.config.schema import (
    ChoiceModel,
    EngineModel,
    ObjectiveModel,
    ParameterModel,
    SpaceFile,
    WorkloadModel,
    YamlFlag,
)
from sweeper.config.source import KeyPath, dotted, line_of
from sweeper.errors import ConfigError, UserError
from sweeper.expressions import Expression
from sweeper.objective import Objective, check_metric, parse_slo
from sweeper.records import FlagValue, Limits, Point, Scalar, Workload
from sweeper.redaction import is_secret_name
from sweeper.space import Choice, Parameter, Space, suggest
from sweeper.study import BaselineSpec, Budget, EngineSpec, Simulation, Study

#: Points on which conditions are tried while the file is read.
_TRIED_POINTS = 1000


class Builder:
    """Turns the checked models into records; knows where each key stands."""

    def __init__(self, tree: CommentedMap, source: str) -> None:
        self.tree = tree
        self.source = source

    def error(self, what: str, path: KeyPath) -> ConfigError:
        key = dotted(path)
        text = what if not key or key in what else f"{key!r}: {what}"
        return ConfigError(text, path=self.source, line=line_of(self.tree, path))

    def study(self, model: SpaceFile, text: str) -> Study:
        parameters = tuple(self.parameter(n, p) for n, p in model.parameters.items())
        constraints = tuple(
            self.expression(c, ("constraints", i)) for i, c in enumerate(model.constraints)
        )
        try:
            space = Space(parameters=parameters, constraints=constraints)
            # Conditions that fail on some values are told with their line, not hours later.
            for point in itertools.islice(space.points(), _TRIED_POINTS):
                space.violation(point)
        except UserError as error:
            raise self.error(str(error), self.place_of(str(error), model)) from None
        workloads = self.workloads(model.workloads)
        names = [w.name for w in workloads]
        study = Study(
            name=model.study,
            source=self.source,
            text=text,
            engine=self.engine(model.engine),
            baseline=BaselineSpec(
                drop=tuple(flag_name(pattern) for pattern in model.baseline.drop),
                flags=self.flags(model.baseline.flags, ("baseline", "flags")),
                env=_env(model.baseline.env),
                reference_tok_s=model.baseline.reference_tok_s,
                every=model.baseline.every,
            ),
            space=space,
            workloads=workloads,
            objectives=tuple(
                self.objective(o, names, ("objectives", i)) for i, o in enumerate(model.objectives)
            ),
            slos=tuple(
                self.checked(partial(parse_slo, s, names), ("slo", i))
                for i, s in enumerate(model.slo)
            ),
            budget=Budget(**model.budget.model_dump()),
            known=self.known(model.known, space),
            sampler=model.sampler,
            seed=model.seed,
            limits=Limits(**model.limits.model_dump()),
        )
        self.check_flags(model, study)
        return study

    def checked(self, make: Any, path: KeyPath) -> Any:
        try:
            return make()
        except UserError as error:
            raise self.error(str(error), path) from None

    def expression(self, text: str, path: KeyPath) -> Expression:
        made: Expression = self.checked(lambda: Expression(text), path)
        return made

    def place_of(self, message: str, model: SpaceFile) -> KeyPath:
        for name, parameter in model.parameters.items():
            if f"parameter {name!r}" in message:
                return ("parameters", name)
            for key in ("when", "otherwise"):
                text = getattr(parameter, key)
                if text is not None and f"work out {str(text).strip()!r}" in message:
                    return ("parameters", name, key)
        for index, text in enumerate(model.constraints):
            if repr(text.strip()) in message:
                return ("constraints", index)
        return ("parameters",)

    def engine(self, model: EngineModel) -> EngineSpec:
        return EngineSpec(
            kind=model.kind,
            command=tuple(model.command) if model.command else None,
            model=model.model,
            gpus=model.gpus,
            nodes=model.nodes,
            slots_per_node=model.slots_per_node,
            measure_alone=model.measure_alone,
            flags=self.flags(model.flags, ("engine", "flags")),
            env=_env(model.env),
            simulation=Simulation(**model.simulation.model_dump()),
            preflight=model.preflight,
        )

    def parameter(self, name: str, model: ParameterModel) -> Parameter:
        path: KeyPath = ("parameters", name)
        if not name.isidentifier():
            raise self.error(
                f"parameter name {name!r} must be letters, digits and '_', "
                "since conditions use it",
                path,
            )
        self.check_labels(path)
        flag = flag_name(model.flag) if model.flag else None
        if is_secret_name(flag or model.env or ""):
            raise self.error(
                f"parameter {name!r} would search over a secret, which no row may hold; "
                "set it under 'engine'",
                path,
            )
        choices = [
            Choice(
                value=value,
                flags={flag: value} if flag else {},
                env={model.env: _env_text(value)} if model.env else {},
            )
            for value in model.values or ()
        ]
        for label, given in (model.choices or {}).items():
            where = (*path, "choices", label)
            choices.append(self.choice(label, given, flag, model.env, where))
        labels = [c.value for c in choices]
        twice = [v for v in labels if labels.count(v) > 1]
        if twice:
            raise self.error(f"value {twice[0]!r} stands there twice", path)
        otherwise = model.otherwise
        return Parameter(
            name=name,
            choices=tuple(choices),
            flag=flag,
            env=model.env,
            when=self.expression(model.when, (*path, "when")) if model.when else None,
            otherwise=self.expression(str(otherwise), (*path, "otherwise"))
            if otherwise is not None
            else None,
        )

    def check_labels(self, path: KeyPath) -> None:
        """Refuse labels that are no text: as text they are in points, so no condition meets them."""
        found: Any = self.tree
        for part in (*path, "choices"):
            found = found.get(part) if isinstance(found, CommentedMap) else None
        for label in found or ():
            if not isinstance(label, str):
                shown = "null" if label is None else str(label)
                shown = shown.lower() if isinstance(label, bool) else shown
                raise ConfigError(
                    f"{dotted((*path, 'choices'))!r}: label {shown} must be text: '{shown}' in "
                    "quotes, also in conditions",
                    path=self.source,
                    line=line_of(self.tree, (*path, "choices", label)),
                )

    def choice(
        self, label: str, value: object, flag: str | None, env: str | None, path: KeyPath
    ) -> Choice:
        if isinstance(value, Scalar):
            if flag is None and env is None:
                raise self.error(
                    f"choice {label!r} needs the parameter's 'flag' or 'env' that takes "
                    f"{value!r}, or 'flags:' and 'env:' of its own",
                    path,
                )
            return Choice(
                value=label,
                flags={flag: value} if flag else {},
                env={env: _env_text(value)} if env else {},
            )
        if not isinstance(value, dict | None):
            raise self.error(f"choice {label!r} must be a value or 'flags:' and 'env:'", path)
        try:
            model = ChoiceModel.model_validate(value or {})
        except ValidationError as error:
            item = error.errors()[0]
            bad = str(item["loc"][0])
            if item["type"] == "extra_forbidden":
                raise self.error(
                    f"unknown key {dotted((*path, bad))!r}; keys here: flags, env"
                    f"{suggest(bad, ['flags', 'env'])}",
                    (*path, bad),
                ) from None
            raise self.error(f"choice {label!r}: {item['msg']}", (*path, bad)) from None
        flags = self.flags(model.flags, (*path, "flags"))
        return Choice(value=label, flags=flags, env=_env(model.env))

    def flags(self, given: Mapping[str, YamlFlag], path: KeyPath) -> dict[str, FlagValue]:
        found: dict[str, FlagValue] = {}
        for key, value in given.items():
            name = flag_name(key)
            if name in found:
                raise self.error(f"the flag {name!r} stands there twice", (*path, key))
            found[name] = tuple(value) if isinstance(value, list) else value
        return found

    def workloads(self, models: Sequence[WorkloadModel]) -> tuple[Workload, ...]:
        found: list[Workload] = []
        for index, model in enumerate(models):
            if model.name in [w.name for w in found]:
                raise self.error(
                    f"workload {model.name!r} stands there twice", ("workloads", index, "name")
                )
            given = model.model_dump()
            if model.request_rate is None and model.arrivals is None and not model.concurrency:
                given["concurrency"] = 1
            if model.duration_s is None and model.repeats is None:
                given["repeats"] = 1
            given["prompts"] = self.beside(model.prompts)
            if model.arrivals is not None:
                given["arrivals"] = self.beside(model.arrivals)
            found.append(Workload(**given))
        return tuple(found)

    def beside(self, name: str) -> str:
        """Make a file named beside the space file absolute; set names stay as they are."""
        beside = Path(self.source).parent / name
        return str(beside.resolve()) if beside.is_file() else name

    def objective(
        self, model: ObjectiveModel, workloads: Sequence[str], path: KeyPath
    ) -> Objective:
        metric = model.maximize or model.minimize or ""
        key = "maximize" if model.maximize else "minimize"
        self.checked(lambda: check_metric(metric), (*path, key))
        if model.workload is not None and model.workload not in workloads:
            raise self.error(
                f"there is no workload {model.workload!r}{suggest(model.workload, workloads)}",
                (*path, "workload"),
            )
        return Objective(
            metric=metric, maximize=model.maximize is not None, workload=model.workload
        )

    def known(self, models: Sequence[Mapping[str, Scalar]], space: Space) -> tuple[Point, ...]:
        found: list[Point] = []
        for index, given in enumerate(models):
            path: KeyPath = ("known", index)
            point: Point = self.checked(partial(space.canonical, given), path)
            broken = space.violation(point)
            if broken is not None:
                raise self.error(f"known setting breaks the constraint {broken!r}", path)
            conflict = space.conflict(point)
            if conflict is not None:
                raise self.error(f"known setting: {conflict}", path)
            if point not in found:
                found.append(point)
        return tuple(found)

    def check_flags(self, model: SpaceFile, study: Study) -> None:
        """Refuse flags that no supported version of the engine has, naming the nearest."""
        vouched = {flag_name(name) for name in model.engine.known_flags}
        places: list[tuple[str, KeyPath]] = [
            (name, ("engine", "flags", name)) for name in model.engine.flags
        ]
        places += [(name, ("baseline", "flags", name)) for name in model.baseline.flags]
        for label, parameter in model.parameters.items():
            if parameter.flag:
                places.append((parameter.flag, ("parameters", label, "flag")))
            for choice, value in (parameter.choices or {}).items():
                if isinstance(value, dict) and isinstance(value.get("flags"), dict):
                    at = ("parameters", label, "choices", choice, "flags")
                    places += [(name, (*at, name)) for name in value["flags"]]
        unknown = study.adapter.unknown_flags([flag_name(name) for name, _ in places])
        for name, path in places:
            flag = flag_name(name)
            if flag in unknown and flag not in vouched:
                near = unknown[flag]
                hint = f"did you mean {near!r}?" if near else "see the engine's --help"
                raise ConfigError(
                    f"no supported version of {study.adapter.name} has a flag {name!r}; {hint} "
                    "(a flag of your own build goes under engine.known_flags)",
                    path=self.source,
                    line=line_of(self.tree, path),
                )


def flag_name(name: str) -> str:
    return name.strip().lstrip("-").replace("_", "-")


def _env_text(value: Scalar) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def _env(given: Mapping[str, Scalar]) -> dict[str, str]:
    return {name: _env_text(value) for name, value in given.items()}
