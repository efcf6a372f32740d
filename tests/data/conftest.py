"""A task with a single rank."""

from support.lone_task import lone_task as lone_task
