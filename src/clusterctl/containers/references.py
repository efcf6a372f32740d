"""Image references: what pyxis takes for --container-image."""

from __future__ import annotations

import re

from clusterctl.errors import ConfigError

# [USER@][REGISTRY#]NAME[:TAG|@DIGEST], as enroot import(1) documents docker:// references.
REFERENCE = re.compile(
    r"(?:[\w.-]+@)?(?:[\w.-]+(?::\d+)?#)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[\w][\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)


def check_image(image: str) -> str:
    """`image` if it is an absolute path or a reference. Raises ConfigError otherwise.

    A relative path would be looked up in a registry, hours later and on the node.
    """
    if image.startswith("/"):
        return image
    if image.endswith(".sqsh"):
        raise ConfigError(f"container.image: a relative path: {image}", f"write ./{image}")
    first, slash, rest = image.removeprefix("docker://").partition("/")
    if slash and "#" not in first and re.search(r"[.:]|^localhost$", first):
        raise ConfigError(
            f"container.image: a registry ends with '#', not with '/': {image}", f'write "{first}#{rest}"'
        )
    if not REFERENCE.fullmatch(image):
        raise ConfigError(
            f"container.image: neither a file nor an image reference: {image}",
            'write "/path/to/image.sqsh", "nvcr.io#nvidia/pyg:24.07-py3" or "python:3.11-slim"',
        )
    return image


def name_of(reference: str) -> str:
    """A file's name for `reference`: nvcr.io#nvidia/pyg:24.11-py3 is nvcr.io-nvidia-pyg-24.11-py3."""
    without_user = reference.rpartition("@")[2] if "@sha256:" not in reference else reference
    short = re.sub(r"@sha256:([0-9a-f]{12})[0-9a-f]*", r"-\1", without_user)
    return re.sub(r"[^\w.-]+", "-", short, flags=re.ASCII).strip("-.")
