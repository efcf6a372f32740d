"""The run directory: the record that both halves share, with the standard library alone.

`layout` knows where everything lies, `files` how to write it, `events` and `metrics` what a task tells, `heartbeats`
that it gets on, `watchdog` what happens when it does not, `place` where a task stands, `signals` how it leaves,
`requests` what it asks of the batch script, `entry` how it starts. A user's own program needs `log`, perhaps `phase`.
"""

from clusterctl.runs.metrics import log, phase

__all__ = ["log", "phase"]
