"""Sweeper finds the fastest launch command of an SGLang server, and proves it.

`python -m sweeper.search SPACE` is the tool. Importing this package imports no Ray, Optuna,
Plotly or Torch.
"""

__version__ = "0.1.0"
