"""Small graphs."""

from support.lone_task import lone_task as lone_task
from support.random_graph import random_graph as random_graph
