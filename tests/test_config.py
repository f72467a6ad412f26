from pathlib import Path

import pytest

from sweeper.config import find_space, load_study, parse_study, shipped_spaces
from sweeper.errors import ConfigError, UserError
from sweeper.planning.plan import make_plan, refusal
from sweeper.study import Study

GOOD = """\
study: small
engine:
  model: /models/my model
  gpus: 1
  flags: {speculative-algorithm: EAGLE3, speculative-draft-model-path: /models/draft}
parameters:
  steps: {flag: speculative-num-steps, values: [1, 2, 3]}
  topk: {flag: speculative-eagle-topk, values: [1, 2]}
  draft_tokens:
    flag: speculative-num-draft-tokens
    values: [2, 4]
    when: topk > 1
    otherwise: steps + 1
  graph:
    choices:
      on: {}
      off: {flags: {disable-cuda-graph: true}}
constraints: [draft_tokens <= 1 + topk + (steps - 1) * topk ** 2]
known: [{steps: 3}]
workloads: [{name: single}]
objectives: [{maximize: output_tok_s}]
slo: [single.ttft_p99_ms < 500]
budget: {launches: 5}
"""


def study_of(text: str) -> Study:
    return parse_study(text, "space.yaml").resolved(gpus_present=False)


def test_a_good_file_becomes_a_study() -> None:
    study = study_of(GOOD)
    assert study.engine.model == "/models/my model"
    assert study.known == ({"steps": 3, "topk": 1, "draft_tokens": 4, "graph": "on"},)
    assert study.launch(study.known[0]).flags["speculative-num-draft-tokens"] == 4
    assert not any(f.startswith("speculative") for f in study.baseline_launch().flags)
    assert study.workloads[0].repeats == 1
    assert study.slos[0].text == "single.ttft_p99_ms < 500"


@pytest.mark.parametrize("name", sorted(shipped_spaces()))
def test_each_shipped_space_loads_and_has_something_to_launch(name: str) -> None:
    study = load_study(shipped_spaces()[name]).resolved(gpus_present=False)
    plan = make_plan(study)
    assert plan.complete
    assert len(plan.settings) >= 10
    keys = {launch.key for _, launch in plan.settings.values()}
    assert keys == set(plan.settings)
    assert study.baseline_launch().key not in keys


@pytest.mark.parametrize("name", sorted(shipped_spaces()))
def test_no_shipped_space_asks_nccl_for_an_algorithm_that_has_no_all_gather(name: str) -> None:
    plan = make_plan(load_study(shipped_spaces()[name]).resolved(gpus_present=False))
    asked = {launch.env.get("NCCL_ALGO", "") for _, launch in plan.settings.values()}
    # Without a collective's name in front it is for all of them; the logits are gathered.
    assert asked <= {"", "Ring", "allreduce:tree"}


def test_on_and_off_are_labels_not_booleans() -> None:
    study = study_of(GOOD)
    graph = next(p for p in study.space.parameters if p.name == "graph")
    assert graph.values == ("on", "off")


MISTAKES = [
    ("missing key", ("study: small\n", ""), "key 'study' is missing", None),
    ("misspelt key", ("workloads:", "workload:"), "'workload'; did you mean 'workloads'?", 20),
    ("misspelt deep key", ("name: single", "nam: single"), "workloads[0].nam", 20),
    (
        "unknown key of a parameter",
        ("values: [1, 2, 3]", "value: [1]"),
        "did you mean 'values'",
        7,
    ),
    (
        "unknown flag",
        ("speculative-num-steps", "speculative-num-step"),
        "speculative-num-steps",
        7,
    ),
    ("wrong type", ("gpus: 1", "gpus: one"), "'engine.gpus' must be integer, not 'one'", 4),
    ("number out of range", ("launches: 5", "launches: 0"), "budget.launches", 23),
    (
        "empty choices",
        ("values: [1, 2, 3]", "values: []"),
        "'parameters.steps.values' is empty",
        7,
    ),
    ("no parameters", ("parameters:\n", "parameters: {}\nx:\n"), "unknown key 'x'", 7),
    ("both kinds", ("values: [1, 2]", "values: [1], choices: {a: 1}"), "either", 8),
    ("constraint not parsed", ("[draft_tokens <=", "[draft_tokens <=<"), "not an expression", 18),
    ("constraint of a stranger", ("[draft_tokens <=", "[tokens <="), "names 'tokens'", 18),
    ("attack in a condition", ("topk > 1", "__import__('os').abort()"), "may call only", 12),
    ("known outside the space", ("steps: 3}]", "steps: 9}]"), "one of: 1, 2, 3", 19),
    ("known of a stranger", ("{steps: 3}]", "{stps: 3}]"), "did you mean 'steps'", 19),
    ("unknown metric", ("maximize: output_tok_s", "maximize: output_toks"), "output_tok_s", 21),
    ("unknown workload", ("output_tok_s}]", "output_tok_s, workload: x}]"), "no workload 'x'", 21),
    ("limit not parsed", ("ttft_p99_ms < 500", "ttft_p99_ms about 500"), "not of the form", 22),
    ("not yaml", ("gpus: 1", "gpus: [1"), "not valid YAML", None),
    ("key twice", ("  gpus: 1\n", "  gpus: 1\n  gpus: 2\n"), "not valid YAML", None),
    ("a python object", ("gpus: 1", "gpus: !!python/object:os.abort 1"), "engine.gpus", 4),
    ("a list", (GOOD, "- 1\n"), "must hold keys and values", None),
    ("nothing", (GOOD, ""), "must hold keys and values", None),
    (
        "a secret to search over",
        ("  graph:\n", "  token: {env: HF_TOKEN, values: [a, b]}\n  graph:\n"),
        "parameter 'token' would search over a secret",
        14,
    ),
    (
        "a variable that cannot be",
        ("  gpus: 1\n", "  gpus: 1\n  env: {A B: 1}\n"),
        "'engine.env.A B': 'A B' cannot be the name of a variable",
        5,
    ),
    ("no number", ("[1, 2, 3]", "[1, .nan]"), "'parameters.steps.values[1]' must be", 7),
    ("infinity", ("name: single", "name: single, temperature: .inf"), "finite number", 20),
    (
        "two spellings of a flag",
        ("EAGLE3,", "EAGLE3, tp-size: 1, tp_size: 2,"),
        "'engine.flags.tp_size': the flag 'tp-size' stands there twice",
        5,
    ),
    (
        "known that sets a flag twice",
        ("on: {}", "on: {flags: {speculative_num_steps: 2}}"),
        "parameters 'steps' and 'graph' set the flag 'speculative-num-steps' to different values",
        19,
    ),
    (
        "a bare flag",
        ("EAGLE3,", "EAGLE3, trust-remote-code: ,"),
        "must be text, a number, true or false, not None; a bare flag is written true",
        5,
    ),
    ("a list as a value", ("[1, 2, 3]", "[1, [2]]"), "must be text, a number, true or false", 7),
    (
        "a parameter that is a number",
        ("{flag: speculative-num-steps, values: [1, 2, 3]}", "3"),
        "'parameters.steps' must be mapping of keys to values, not 3",
        7,
    ),
    ("label a number", ("      on: {}", "      1: {}"), "label 1 must be text: '1' in quotes", 16),
    ("label a boolean", ("      on: {}", "      true: {}"), "label true must be text", 16),
    ("known true for 1", ("{steps: 3}]", "{steps: true}]"), "'steps' cannot be True", 19),
    (
        "text compared with a number",
        ("[draft_tokens <=", "[graph > 1, draft_tokens <="),
        "'constraints[0]': cannot work out 'graph > 1'",
        18,
    ),
    ("text and a number added", ("steps + 1", "graph + 1"), "cannot work out 'graph + 1'", 13),
    ("divided by zero", ("topk > 1", "4 / (topk - 1)"), "'parameters.draft_tokens.when': ", 12),
    (
        "otherwise no plain value",
        ("otherwise: steps + 1", "otherwise: '[steps]'"),
        "gives (1,), no plain value",
        9,
    ),
    ("value twice", ("[1, 2, 3]", "[1, 2, 2]"), "2 stands there twice", 7),
]


@pytest.mark.parametrize(
    ("change", "message", "line"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES]
)
def test_a_mistake_is_one_message_with_its_line(
    change: tuple[str, str], message: str, line: int | None
) -> None:
    assert change[0] in GOOD
    with pytest.raises(ConfigError) as caught:
        study_of(GOOD.replace(*change))
    text = str(caught.value)
    assert message in text
    assert "\n" not in text
    assert text.startswith("space.yaml")
    if line is not None:
        assert text.startswith(f"space.yaml:{line}: ")


def test_a_constraint_that_nothing_meets_is_named() -> None:
    study = study_of(
        GOOD.replace("constraints: [", "constraints: [steps > 9, ").replace(
            "known: [{steps: 3}]\n", ""
        )
    )
    with pytest.raises(UserError, match="all refused; 18 of them because: constraint: steps > 9"):
        make_plan(study)


def test_a_point_that_sets_one_flag_to_two_values_is_refused() -> None:
    study = study_of(
        GOOD.replace("off: {flags: {disable", "off: {flags: {speculative_num_steps: 3, disable")
    )
    why = "parameters 'steps' and 'graph' set the flag 'speculative-num-steps' to different values"
    refused = make_plan(study).refused[why]
    assert {p["graph"] for p in refused} == {"off"}
    assert {p["steps"] for p in refused} == {1, 2}
    assert {refusal(study, p) for p in refused} == {why}


def test_a_bomb_of_aliases_is_refused() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for name, last in zip("bcdefgh", "abcdefg", strict=True):
        bomb += f"{name}: &{name} [" + ", ".join([f"*{last}"] * 10) + "]\n"
    with pytest.raises(UserError, match="more than"):
        study_of(bomb)


def test_a_file_that_is_no_utf8_says_where(tmp_path: Path) -> None:
    path = tmp_path / "räume.yaml"
    path.write_bytes(b"study: a\nengine: \xff\n")
    with pytest.raises(ConfigError, match=r"räume\.yaml:2: is not UTF-8"):
        load_study(path)


def test_a_file_with_non_ascii_names_loads(tmp_path: Path) -> None:
    path = tmp_path / "räume ☃.yaml"
    path.write_text(GOOD.replace("/models/my model", "/modelle/größe ☃"), encoding="utf-8")
    assert load_study(path).engine.model == "/modelle/größe ☃"


def test_a_shipped_space_is_found_by_its_name_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("eagle3", "eagle3.yaml", "spaces/eagle3.yaml"):
        assert load_study(find_space(name)).name == "eagle3"
    with pytest.raises(UserError, match="did you mean 'eagle3'"):
        find_space("eagle.yaml")


SECRETS = {
    "plain": "s3cret",
    "quoted": '"s3cret \\" # s3cret"',
    "with an anchor": "&key s3cret",
    "words": "[s3cret, s3cret]",
    "a block": "|\n      s3cret\n      s3cret",
    "with a comment": "s3cret   # kept",
}


@pytest.mark.parametrize("value", SECRETS.values(), ids=SECRETS)
def test_no_secret_of_a_space_file_is_kept_with_the_results(value: str) -> None:
    text = GOOD.replace(
        "  flags: {speculative-algorithm: EAGLE3, speculative-draft-model-path: /models/draft}\n",
        f"  flags:\n    api-key: {value}\n    speculative-algorithm: EAGLE3\n"
        "    speculative-draft-model-path: /models/draft\n"
        "  env: {HF_TOKEN: s3cret, HTTPS_PROXY: 'http://me:s3cret@proxy:80'}\n",
    )
    study = study_of(text)
    assert "s3cret" in str(study.engine)
    assert "s3cret" not in study.text
    kept = study_of(study.text)
    assert "s3cret" not in str(kept.engine)
    assert kept.text == study.text
    assert kept.engine.flags.keys() == study.engine.flags.keys()
    # What is kept still says which settings its rows are of, and where everything stands.
    assert kept.launch(kept.known[0]).key == study.launch(study.known[0]).key
    if "\n" not in value:
        assert len(study.text.splitlines()) == len(text.splitlines())
    assert ("# kept" in study.text) == ("# kept" in text)


def test_a_space_file_without_secrets_is_kept_as_it_is() -> None:
    assert study_of(GOOD).text == GOOD
    for path in shipped_spaces().values():
        assert load_study(path).text == path.read_text(encoding="utf-8")


def test_flags_of_a_users_own_build_can_be_vouched_for() -> None:
    text = GOOD.replace("gpus: 1", "gpus: 1\n  known_flags: [my-own-flag]").replace(
        "off: {flags: {disable-cuda-graph: true}}", "off: {flags: {my-own-flag: true}}"
    )
    study = study_of(text)
    assert study.engine.gpus == 1
    assert not any("my-own-flag" in reason for reason in make_plan(study).refused)


def test_dropped_flags_may_be_spelled_as_flags_are() -> None:
    text = GOOD + "baseline: {drop: [--speculative_*, cuda_graph*]}\n"
    assert parse_study(text, "small.yaml").baseline.drop == ("speculative-*", "cuda-graph*")


@pytest.mark.parametrize(
    "line",
    [
        "env: {HF_TOKEN: hunter1, HF_TOKEN: hunter2}",
        "env: HF_TOKEN=hunter2",
        "env: {HF_TOKEN=hunter2: 1}",
        "env: {HF_TOKEN: [hunter2]}",
        "env: --api-key hunter2",
        "flags: --api-key 'hunter2 hunter3'",
        "command: python --api-key hunter2",
        "limits: {api-key: hunter2}",
        "HF_TOKEN=hunter2: 1",
    ],
)
def test_no_message_about_a_mistake_tells_a_secret(line: str) -> None:
    text = "\n".join(x for x in GOOD.split("\n") if not x.startswith("  flags:"))
    with pytest.raises(ConfigError) as caught:
        study_of(text.replace("  gpus: 1\n", f"  gpus: 1\n  {line}\n"))
    assert "hunter" not in str(caught.value)
    assert str(caught.value).startswith("space.yaml:5: ")
