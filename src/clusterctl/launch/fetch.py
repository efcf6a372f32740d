"""Brings the image of a run to where its nodes look for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterctl.config import Resolved
    from clusterctl.containers.listener import ProgressListener
    from clusterctl.launch.plan import Plan


def needs_image(plan: Plan, resolved: Resolved) -> bool:
    """Whether the image is a reference that no pyxis will fetch."""
    return plan.view is not None and plan.view.image != resolved.job.container.image


def fetch_image(plan: Plan, resolved: Resolved, progress: ProgressListener) -> None:
    """Import that image; of several submits at a time one does, the others wait. Raises ImageError."""
    from clusterctl.containers.importing import import_reference

    assert plan.view
    assert resolved.job.container.image
    import_reference(resolved.job.container.image, None, Path(plan.view.image).parent, progress)
