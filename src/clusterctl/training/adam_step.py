"""One in-place Adam step on a tensor: torch's fused kernel if available, otherwise the same arithmetic.

The kernel reads and writes everything once. `torch.optim.Adam(fused=True)` calls it, but it is private to torch. Only
this module calls it, and falls back to the arithmetic below if its arguments differ from those known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

if TYPE_CHECKING:
    from torch import Tensor

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8
_ARGUMENTS = (
    *("self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_steps"),
    *("lr", "beta1", "beta2", "weight_decay", "eps", "amsgrad", "maximize", "grad_scale", "found_inf"),
)


def _kernel_is_known() -> bool:
    """Whether this torch has the kernel, with the arguments that `adam_step` passes (torch 2.6 to 2.13 do)."""
    schemas = torch._C._jit_get_schemas_for_operator("aten::_fused_adam_")  # noqa: SLF001 - there is no public API
    known = [tuple(part.name for part in schema.arguments) for schema in schemas if not schema.overload_name]
    return known == [_ARGUMENTS]


FUSED = _kernel_is_known()


@torch.no_grad()
def adam_step(
    values: Tensor,
    gradients: Tensor,
    mean: Tensor,
    square: Tensor,
    lr: float | Tensor,
    weight_decay: float,
    steps: int | Tensor,
) -> None:
    """Step number `steps` (from 1) of Adam (Kingma and Ba, 2015) with L2 weight decay and torch's default betas.

    All tensors have one shape, dtype (float32 or float64) and device. `values` and their moments `mean` and `square`
    are contiguous and updated in place; the gradients do not change. If FUSED, `lr` and `steps` may be 0-dimensional
    float32 tensors.
    """
    if not FUSED:
        _plain_step(values, gradients, mean, square, float(lr), weight_decay, int(steps))
        return
    if isinstance(steps, torch.Tensor):
        count = steps
    else:
        count = torch.full((), steps, dtype=torch.float32, device=values.device)
    torch._fused_adam_(
        [values], [gradients.contiguous()], [mean], [square], [], [count],
        lr=cast("float", lr), beta1=_BETA1, beta2=_BETA2, weight_decay=weight_decay, eps=_EPSILON,
        amsgrad=False, maximize=False,
    )  # fmt: skip


def _plain_step(
    values: Tensor, gradients: Tensor, mean: Tensor, square: Tensor, lr: float, weight_decay: float, steps: int
) -> None:
    if weight_decay:
        gradients = gradients.add(values, alpha=weight_decay)
    mean.lerp_(gradients, 1 - _BETA1)
    square.mul_(_BETA2).addcmul_(gradients, gradients, value=1 - _BETA2)
    scale = (1 - _BETA2**steps) ** 0.5  # of the root of the square; factored out of the division to save a pass
    step_size = lr * scale / (1 - _BETA1**steps)
    values.addcdiv_(mean, square.sqrt().add_(_EPSILON * scale), value=-step_size)
