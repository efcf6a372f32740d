"""Fixtures: a single-rank task and small graphs."""

from __future__ import annotations

from support.lone_task import lone_task as lone_task
from support.lone_task import mapped as mapped
from support.lone_task import random_graph as random_graph
