"""Small graphs."""

from support.lone_task import lone_task as lone_task
from support.lone_task import random_graph as random_graph
