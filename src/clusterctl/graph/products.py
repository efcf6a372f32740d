"""Matrix products, where torch's own choice of a library is the slow one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_WORTH_COMPILING = 1 << 26  # multiplications; oneDNN compiles for every new number of rows, some 0.5 ms


class Linear(nn.Linear):
    """torch's, by `linear`."""

    def forward(self, rows: Tensor) -> Tensor:
        return linear(rows, self.weight, self.bias)


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`rows @ weight.T + bias`: [rows, in], [out, in] and [out] make [rows, out].

    In float32 torch leaves products on a CPU to MKL, which does without AVX-512 on AMD's processors; convolutions it
    leaves to oneDNN, which does not. A convolution of one pixel over a line of pixels is the same product, 2.4 times
    faster on an EPYC (Zen 5, torch 2.13), its gradients too.
    """
    if not _faster_as_convolution(rows, weight):
        return F.linear(rows, weight, bias)
    line = rows.contiguous()[None, None].permute(0, 3, 1, 2)  # batch, channels, height, width: the bytes stay in place
    # With one pixel the dilation changes nothing, except that torch uses oneDNN for a single thread too.
    return F.conv2d(line, weight[:, :, None, None], bias, dilation=2).permute(0, 2, 3, 1)[0, 0]


def rounded(count: int) -> int:
    """The next of few numbers, at most a thirty-second above: products of so many rows are compiled once."""
    return count + -count % (1 << max(0, count.bit_length() - 6))


def _faster_as_convolution(rows: Tensor, weight: Tensor) -> bool:
    return (
        rows.device.type == "cpu"
        and rows.dtype == torch.float32
        and rows.size(0) * weight.numel() >= _WORTH_COMPILING
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
    )
