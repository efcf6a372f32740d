"""What the tasks run: one readable file per workload - data, model, a call to the training loop.

Each has `main(context)`, which a task of a run calls (`shared.node.entry`), and which runs under torchrun with
`python -m clusterctl.train`. To add one: its file here, its Train class and line in `spec.train`, and a job file.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterctl.shared.node.events import Context

# Workloads that are another one with defaults of their own, and so have no file.
_PRESETS = {"reddit": "node-classification", "deep-sage": "node-classification"}


def main(context: Context) -> None:
    """Run the workload of the context's job."""
    name = f"{__name__}.roles" if context.record.get("role") else module_of(context.record["workload"])
    import_module(name).main(context)


def module_of(workload: str) -> str:
    """The full name of a workload's module."""
    return f"{__name__}.{_PRESETS.get(workload, workload).replace('-', '_')}"
