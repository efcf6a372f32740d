"""Whether a failed rank's GPU is broken: only if CUDA's own error and the GPU's own count agree."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from clusterctl.engine.task.node_telemetry import NodeGpus, find_gpus
from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.record.place import node_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_UNCORRECTABLE = 214  # cudaErrorECCUncorrectable
_ITS_TEXT = "CUDA error: uncorrectable ECC error encountered"  # for torch before 2.8, whose errors have no code


def gpu_defect(
    error: BaseException, environment: Mapping[str, str] = os.environ, find: Callable[..., object] = find_gpus
) -> TaskError | None:
    """An error that names the broken GPU, if torch raised `error` for a memory error that this task's GPU counts, too.

    A GPU counts what it could not correct since its driver was loaded (NVML's volatile counter). Without such a count
    nothing is certain, and the answer is None: AMD's GPUs, those without ECC, and nodes without nvidia-ml-py.
    Source: https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html
    """
    if not _is_of_memory(error):
        return None
    gpus = find(environment)
    counts = gpus.uncorrected() if isinstance(gpus, NodeGpus) else {}
    broken = {index: count for index, count in counts.items() if count > 0}
    if not broken:
        return None
    index, count = max(broken.items(), key=lambda one: one[1])
    words = f"GPU {index} of {node_name(environment)} cannot correct an error in its memory (ECC): it counts {count}"
    found = TaskError(words, "show your administrator: nvidia-smi -q -d ECC", cause=Cause.NODE)
    found.__cause__ = error
    return found


def _is_of_memory(error: BaseException) -> bool:
    kind = type(error)
    if kind.__module__.startswith("torch") and kind.__name__ == "AcceleratorError":
        code = getattr(error, "error_code", None)
        return code == _UNCORRECTABLE or (code is None and str(error).startswith(_ITS_TEXT))
    return kind is RuntimeError and str(error).startswith(_ITS_TEXT)
