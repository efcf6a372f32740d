"""A rank without others."""

from support.lone_task import lone_task as lone_task
