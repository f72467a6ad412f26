"""The instrument: prompts, loads, and the streaming client that measures a ready server.

`measure.measure` is its one entry; `python -m sweeper.bench URL` measures any running server.
"""
