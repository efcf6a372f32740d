"""Small graphs."""

from lone_task import lone_task as lone_task
from random_graph import random_graph as random_graph
