"""Matrix products for cases in which torch picks the slower library."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_WORTH_COMPILING = 1 << 26  # multiplications; oneDNN compiles a kernel, in about 0.5 ms, for every number of rows


class Linear(nn.Linear):
    """`torch.nn.Linear` computed by `linear`."""

    def forward(self, rows: Tensor) -> Tensor:
        return linear(rows, self.weight, self.bias)


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`rows @ weight.T + bias`: [rows, in], [out, in] and [out] make [rows, out].

    For float32 products on a CPU, torch calls MKL, which uses AVX-512 only on Intel's processors. For convolutions it
    calls oneDNN, which uses it on AMD's too. A 1x1 convolution over a line of pixels is the same product, and 2.4 times
    as fast on an EPYC (Zen 5, torch 2.13), gradients included.
    """
    is_faster = (
        rows.device.type == "cpu"
        and rows.dtype == torch.float32
        and rows.size(0) * weight.numel() >= _WORTH_COMPILING
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and not _is_intels()
    )
    if not is_faster:
        return F.linear(rows, weight, bias)
    line = rows.contiguous()[None, None].permute(0, 3, 1, 2)  # batch, channels, height, width: the bytes stay in place
    # With one pixel the dilation has no effect, except that torch then uses oneDNN on a single thread too.
    pixels = F.conv2d(line, weight[:, :, None, None], bias, dilation=2).permute(0, 2, 3, 1)
    return pixels.squeeze((0, 1))  # the gradient of pixels[0, 0] would be copied twice, into new zeros


@cache
def _is_intels() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


def rounded(count: int) -> int:
    """Round up by at most 1/32, so that few different numbers of rows occur and oneDNN compiles few kernels."""
    return count + -count % (1 << max(0, count.bit_length() - 6))
