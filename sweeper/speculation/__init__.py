"""Speed = accept length / step time: features, priors and the linear fit behind the search. Pure.

    acceptance   logit of the chance that draft position j is accepted once those before it were
                 = draft + prompt kind + position + tree terms        independent of NCCL, graphs
    length       1 + sum over j of the product of the chances up to j
    step time    log of ms = shape terms + factors + interactions     independent of the prompts
    speed        log = log length - log step time

All chains of one draft share their terms, so one long chain informs every shorter one. Prior
means and widths are physical magnitudes in log units: a sd of 0.06 is 6 %. They come from public
figures of EAGLE-3 servers (accept lengths of 1.8 to 2.6, verify steps of 1.6 to 3 times a plain
step), not from any one machine; `fit` moves away from them as measurements come in.
"""

from sweeper.speculation.acceptance import MAX_POSITIONS, acceptance_design, lengths
from sweeper.speculation.regression import Array, Design, Fit, fit, fits
from sweeper.speculation.shape import GRAPHS_OFF, SHAPE_FLAGS, Factor, Setting, Shape, shape_of
from sweeper.speculation.step_time import step_design

__all__ = [
    "GRAPHS_OFF",
    "MAX_POSITIONS",
    "SHAPE_FLAGS",
    "Array",
    "Design",
    "Factor",
    "Fit",
    "Setting",
    "Shape",
    "acceptance_design",
    "fit",
    "fits",
    "lengths",
    "shape_of",
    "step_design",
]
