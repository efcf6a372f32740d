"""The run directory: the record that both halves share, with the standard library alone.

`layout` knows where everything lies, `files` how to write it, `events` and `metrics` what a task tells, `place` where
a task stands, `signals` how it leaves, `entry` how it starts. A user's own program needs `log` alone.
"""

from clusterctl.runs.metrics import log

__all__ = ["log"]
