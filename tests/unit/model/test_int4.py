"""Packed four-bit weights: the layout bit by bit, exact round trips, any rows alone."""

import pytest
import torch

from etude.errors import UserError
from etude.model.int4 import dequantize, pack, quantize, unpack


def test_the_first_value_is_in_the_lowest_bits_and_eight_is_added():
    values = torch.tensor([[-8, -7, 0, 1, 2, 3, 4, 7], [7, 7, 7, 7, 7, 7, 7, 7]])
    assert [hex(int(entry) & 0xFFFFFFFF) for entry in pack(values)[:, 0]] == ["0xfcba9810", "0xffffffff"]
    assert pack(values).dtype == torch.int32


@pytest.mark.parametrize("columns", [1, 8, 13, 64])
def test_what_is_packed_is_unpacked(columns):
    values = torch.randint(-8, 8, (5, columns), generator=torch.Generator().manual_seed(columns))
    assert torch.equal(unpack(pack(values), columns).long(), values)


def test_a_weight_is_its_integer_times_the_scale_of_its_group():
    packed = pack(torch.tensor([[-8, 7, 1, -1, 2, 3, 0, 5]]))
    scale = torch.tensor([[0.5, 2.0]], dtype=torch.bfloat16)
    assert dequantize(packed, scale, 8).tolist() == [[-4.0, 3.5, 0.5, -0.5, 4.0, 6.0, 0.0, 10.0]]


def test_weights_that_did_not_move_are_packed_to_the_same_bits():
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(-8, 8, (16, 64), generator=generator)
    values[:, ::32] = 7
    scale = (torch.rand(16, 2, generator=generator) + 0.1).bfloat16()
    packed = pack(values)
    again, kept = quantize(dequantize(packed, scale, 64, torch.float32), 32, former=scale)
    assert torch.equal(again, packed)
    assert torch.equal(kept, scale)


@pytest.mark.parametrize("factor", [0.1, 3.0])
def test_a_group_that_outgrew_or_shrank_below_its_scale_gets_a_new_one(factor):
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
    _, former = quantize(weight, 32)
    packed, scale = quantize(weight * factor, 32, former=former)
    assert not torch.equal(scale, former)
    error = (dequantize(packed, scale, 64, torch.float32) - weight * factor).abs()
    assert (error <= (0.5 + 7.5 * 2**-8) * scale.float().repeat_interleave(32, 1)).all()


def test_rows_are_independent_and_zeros_stay_zeros():
    weight = torch.randn(6, 32, generator=torch.Generator().manual_seed(2))
    weight[3] = 0
    packed, scale = quantize(weight, 16)
    part, part_scale = quantize(weight[2:5], 16)
    assert torch.equal(packed[2:5], part)
    assert torch.equal(scale[2:5], part_scale)
    assert (dequantize(packed, scale, 32)[3] == 0).all()


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="1 entries a row cannot have 9 columns"):
        unpack(torch.zeros(1, 1, dtype=torch.int32), 9)
    with pytest.raises(UserError, match="3 scales a row do not divide 8 columns"):
        dequantize(torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 3), 8)
    with pytest.raises(UserError, match="groups of 5 do not divide 8 columns"):
        quantize(torch.zeros(1, 8), 5)
