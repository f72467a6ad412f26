"""The search: which setting to launch next. The only user of Optuna.

    records --tell--> evidence --model--> belief --acquire--> ask --> point

The store is the truth: every ask rebuilds what it needs from the told records.
"""

from sweeper.sampler.door import Sampler, make_sampler
from sweeper.sampler.forecast import Forecast, forecast
from sweeper.sampler.insight import export_sqlite, importances

__all__ = [
    "Forecast",
    "Sampler",
    "export_sqlite",
    "forecast",
    "importances",
    "make_sampler",
]
