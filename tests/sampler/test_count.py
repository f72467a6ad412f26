"""How many launches a space has, and that none is ever made twice."""

import io
from collections.abc import Mapping

import pytest

from sweeper.config import parse_study
from sweeper.planning.plan import make_plan
from sweeper.sampler import make_sampler
from sweeper.terminal.outlook import print_plan
from tests.sampler.worlds import SAMPLERS, record

#: 456 settings that differ for the engine: 38 shapes x graphs x 6 NCCL choices.
SPACE = """
study: hundreds
engine: {kind: simulated, model: /models/target, gpus: 1, flags: {speculative-algorithm: EAGLE3}}
parameters:
  steps: {flag: speculative-num-steps, values: [1, 2, 3, 4, 5]}
  topk: {flag: speculative-eagle-topk, values: [1, 2, 4]}
  draft_tokens: {flag: speculative-num-draft-tokens, values: [2, 4, 6, 8, 12, 16]}
  cuda_graph: {choices: {on: {}, off: {flags: {disable-cuda-graph: true}}}}
  nccl:
    choices:
      default: {}
      ring-ll: {env: {NCCL_ALGO: Ring, NCCL_PROTO: LL}}
      ring-simple: {env: {NCCL_ALGO: Ring, NCCL_PROTO: Simple}}
      tree-ll: {env: {NCCL_ALGO: Tree, NCCL_PROTO: LL}}
      tree-simple: {env: {NCCL_ALGO: Tree, NCCL_PROTO: Simple}}
      spelt-otherwise: {env: {NCCL_ALGO: ring, NCCL_PROTO: ll}}
workloads: [{name: single}]
objectives: [{maximize: output_tok_s}]
"""
STUDY = parse_study(SPACE, "hundreds.yaml")


def by_hand() -> tuple[int, int]:
    """Return (settings that differ, points refused) by SGLang's rules, spelt out once more.

    With top-k 1 the draft tokens are steps + 1, whatever is asked. A tree has at most
    1 + k + (steps - 1) k^2 tokens, and at least a path of all steps and the sure one.
    """
    shapes, refused = set(), 0
    for steps in (1, 2, 3, 4, 5):
        for topk in (1, 2, 4):
            for tokens in (2, 4, 6, 8, 12, 16):
                if topk == 1:
                    shapes.add((steps, 1, steps + 1))
                elif steps < tokens <= 1 + topk + (steps - 1) * topk**2:
                    shapes.add((steps, topk, tokens))
                else:
                    refused += 1
    return len(shapes) * 2 * 6, refused * 2 * 6


def test_the_number_of_launches_is_printed_and_right() -> None:
    plan = make_plan(STUDY)
    settings, refused = by_hand()
    assert len(plan.settings) == settings == 456
    assert sum(map(len, plan.refused.values())) == refused
    assert settings + refused + plan.merged == 5 * 3 * 6 * 2 * 6
    out = io.StringIO()
    print_plan(plan, STUDY, 1.0, out)
    assert f"{settings} distinct settings can be launched" in out.getvalue()
    assert f"{refused} points are refused" in out.getvalue()


def test_an_exhaustive_sweep_makes_each_launch_once() -> None:
    plan = make_plan(STUDY)
    sampler = make_sampler(parse_study(SPACE + "sampler: grid\n", "grid.yaml"), plan)
    taken: set[str] = set()
    while (point := sampler.ask(taken)) is not None:
        key = STUDY.launch(point).key
        assert key not in taken
        taken.add(key)
    assert taken == plan.settings.keys()


@pytest.mark.parametrize("name", SAMPLERS)
def test_no_sampler_launches_a_setting_twice_under_any_name(name: str) -> None:
    study = parse_study(f"{SPACE}sampler: {name}\n", "hundreds.yaml")
    sampler = make_sampler(study, make_plan(study))
    launched: dict[str, Mapping[str, object]] = {}
    for number in range(30):
        point = {} if number == 0 else sampler.ask(launched.keys())
        assert point is not None
        done = record(study, number, point)
        flags, env = done.trial.launch.flags, done.trial.launch.env
        # What the engine does is told by flags and variables, whatever they are called here.
        effect = repr((sorted(flags.items(), key=str), sorted(env.items())))
        assert done.trial.launch.key not in launched
        assert effect not in {str(e["effect"]) for e in launched.values()}
        launched[done.trial.launch.key] = {"effect": effect}
        sampler.tell(done)
