"""`python -m sweeper.config.json_schema`: the JSON Schema of a space file, for editors.

The shape is `schema.py`'s; the words are those of the records that the file becomes. What a
schema cannot say (conditions, flags of the engine, units) only `sweeper.config` checks.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

from sweeper.config.schema import SpaceFile
from sweeper.docstrings import field_words
from sweeper.objective import Objective
from sweeper.records import Limits, Workload
from sweeper.study import BaselineSpec, Budget, EngineSpec, Simulation, Study

_RECORDS: Mapping[str, type] = {
    "SpaceFile": Study,
    "EngineModel": EngineSpec,
    "SimulationModel": Simulation,
    "BaselineModel": BaselineSpec,
    "WorkloadModel": Workload,
    "BudgetModel": Budget,
    "LimitsModel": Limits,
    "ObjectiveModel": Objective,
}
#: Keys that the records have under another name, or not at all.
_WORDS: Mapping[str, Mapping[str, str]] = {
    "SpaceFile": {
        "study": "The study's name; results go to runs/<study>/.",
        "parameters": "Name of a dimension of the search -> what it may be.",
        "constraints": "Conditions that every setting meets, as 'draft_tokens <= 1 + topk'.",
        "known": "Settings that are tried first; missing parameters take their first value.",
        "slo": "Limits that a winner keeps, as 'busy.ttft_p99_ms < 500'.",
    },
    "EngineModel": {"known_flags": "Flags of your own build, not to be refused as unknown."},
    "ParameterModel": {
        "flag": "The flag that takes the value, without dashes.",
        "env": "The variable that takes the value.",
        "values": "The values to try.",
        "choices": "Label -> a value of 'flag' or 'env', or flags and env of its own.",
        "when": "Condition under which the parameter is active, as 'topk > 1'.",
        "otherwise": "Its value where it is not active, as 'steps + 1'; absent if not given.",
    },
    "ObjectiveModel": {
        "maximize": "A number of a measurement, as output_tok_s.",
        "minimize": "A number of a measurement, as ttft_p99_ms.",
    },
}


def json_schema() -> dict[str, Any]:
    """Return the schema, draft 2020-12."""
    found = SpaceFile.model_json_schema()
    parts = {"SpaceFile": found, **found["$defs"]}
    for name, part in parts.items():
        words = {**(field_words(_RECORDS[name]) if name in _RECORDS else {})}
        words |= _WORDS.get(name, {})
        for key, value in part.get("properties", {}).items():
            value.pop("title", None)
            if key in words:
                value["description"] = words[key]
        part.pop("title", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Space file of Sweeper",
        **found,
    }


def text() -> str:
    """Return the schema as the file that ships."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
