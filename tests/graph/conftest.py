"""Small graphs."""

from random_graph import random_graph as random_graph
