"""`linear` against `torch.nn.functional.linear`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from clusterctl.engine.graph import blocks
from clusterctl.engine.graph.blocks import Linear, linear, rounded

LARGE = (4_100, 300, 96)  # rows, in, out: large enough for a convolution


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def operands(rows: int, inputs: int, outputs: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(rows, inputs), (outputs, inputs), (outputs,)]
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def with_gradients(product: Tensor, operands: list[Tensor]) -> list[Tensor]:
    return [product, *torch.autograd.grad(product.square().sum(), operands)]


@pytest.fixture(params=["AMD", "Intel"])
def maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whose processor this is."""
    monkeypatch.setattr(blocks, "_is_intels", lambda: request.param == "Intel")
    return str(request.param)


@pytest.mark.parametrize("shape", [LARGE, (5, 7, 3), (1, 1, 1)])
@pytest.mark.usefixtures("maker")
def test_products_and_gradients_match_torch(shape: tuple[int, int, int], threads: int) -> None:
    given = operands(*shape)
    exact = [operand.detach().double().requires_grad_() for operand in given]
    expected = with_gradients(F.linear(*exact), exact)
    for ours, truth in zip(with_gradients(linear(*given), given), expected, strict=True):
        assert ours.shape == truth.shape
        assert (ours - truth).abs().max() <= 1e-5 * truth.abs().max()


@pytest.mark.usefixtures("maker")
def test_a_repeated_product_is_bitwise_identical(threads: int) -> None:
    given = operands(*LARGE)
    for once, again in zip(*(with_gradients(linear(*given), given) for _ in range(2)), strict=True):
        assert torch.equal(once, again)


def test_a_row_does_not_depend_on_the_other_rows(threads: int) -> None:
    rows, weight, bias = (operand.detach() for operand in operands(*LARGE))
    assert torch.equal(linear(rows[:-37], weight, bias), linear(rows, weight, bias)[:-37])


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="MKL and oneDNN are equally fast without AVX-512"
)
def test_large_products_use_onednn_except_on_intels_processors(threads: int, maker: str) -> None:
    given = operands(*LARGE)
    with torch.autograd.profiler.profile() as profile:
        linear(*given).sum().backward()
    used = {event.name for event in profile.function_events}
    assert ("aten::mkldnn_convolution" in used) == (maker == "AMD")
    assert "aten::zeros" not in used  # into which the gradient of a selected pixel would be copied


def test_the_processors_maker_is_found() -> None:
    blocks._is_intels.cache_clear()
    assert blocks._is_intels() == ("Intel" in Path("/proc/cpuinfo").read_text().partition("flags")[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_use_torchs_linear(dtype: torch.dtype) -> None:
    given = operands(*LARGE, dtype)
    assert torch.equal(linear(*given), F.linear(*given))


def test_non_contiguous_rows_are_supported() -> None:
    rows, weight, bias = (operand.detach() for operand in operands(*LARGE))
    assert torch.equal(linear(rows.t().contiguous().t(), weight, bias), linear(rows, weight, bias))
    assert torch.equal(linear(rows.repeat(1, 2)[:, : rows.size(1)], weight, bias), linear(rows, weight, bias))


def test_linear_has_the_parameter_names_and_initial_weights_of_torch() -> None:
    layers = []
    for kind in (Linear, torch.nn.Linear):
        torch.manual_seed(5)
        layers.append(kind(6, 4).state_dict())
    ours, theirs = layers
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@given(st.integers(0, 1 << 24))
def test_rounding_adds_at_most_a_thirty_second_and_is_idempotent(count: int) -> None:
    assert count <= rounded(count) <= count * 33 / 32
    assert rounded(rounded(count)) == rounded(count)


def test_rounding_yields_few_distinct_numbers() -> None:
    assert len({rounded(count) for count in range(20_000, 24_000)}) <= 9
