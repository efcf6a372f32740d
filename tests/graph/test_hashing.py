from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.engine.graph.hashing import Purpose, draws, stream


def test_the_hash_is_splitmix64() -> None:
    # The reference generator's first outputs from state 1234567, as published with its C source.
    golden, state, outputs = 0x9E3779B97F4A7C15, 1234567, []
    for _ in range(3):
        signed = state - (1 << 64) if state >> 63 else state
        outputs.append(int(draws(signed, torch.tensor([0]))) % (1 << 64))
        state = (state + golden) % (1 << 64)
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=4, unique=True))
def test_streams_differ_by_numbers_order_and_purpose(numbers: list[int]) -> None:
    key = stream(Purpose.SAMPLING, *numbers)
    assert key == stream(Purpose.SAMPLING, *numbers)
    assert key not in {stream(Purpose.SAMPLING, *reversed(numbers)), stream(Purpose.DROPOUT, *numbers)}


def test_every_bit_of_a_draw_is_a_fair_coin() -> None:
    bits = draws(7, torch.arange(20_000))
    ones = torch.stack([(bits >> shift) & 1 for shift in range(64)]).double().mean(1)
    assert (ones - 0.5).abs().max() < 5 * 0.5 / 20_000**0.5
