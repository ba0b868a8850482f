"""Packed weights multiply as the layer does, and follow it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.engines import packed_linear
from gym_trl.engines.packed_linear import PackedLinear

DTYPES = [torch.float32, torch.bfloat16]
pytestmark = pytest.mark.skipif(
    not packed_linear._multiplies(torch.float32), reason="this PyTorch cannot pack weights here"
)


def layer(columns: int = 24, rows: int = 40, *, bias: bool = True, dtype: Any = torch.float32) -> Any:
    return torch.nn.Linear(columns, rows, bias=bias).to(dtype)


@examples(60)
@given(
    columns=st.integers(1, 70),
    rows=st.integers(1, 70),
    shape=st.lists(st.integers(1, 9), max_size=2),
    bias=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_products_are_those_of_the_layer(columns: int, rows: int, shape: list[int], bias: bool, dtype: Any) -> None:
    rounding = 3e-2 if dtype == torch.bfloat16 else 1e-5
    model = layer(columns, rows, bias=bias, dtype=dtype)
    x = torch.randn(*shape, columns).to(dtype)
    with torch.no_grad():
        expected = model(x)
        with PackedLinear(model).used():
            assert ("forward" in vars(model)) == packed_linear._multiplies(dtype)
            product = model(x)
    assert product.shape == expected.shape
    assert product.dtype == expected.dtype
    torch.testing.assert_close(product, expected, rtol=rounding, atol=rounding)


def test_a_layer_has_its_own_forward_again_after_an_exception() -> None:
    model = torch.nn.Sequential(layer(), torch.nn.ReLU())
    with pytest.raises(ZeroDivisionError), PackedLinear(model).used():
        raise ZeroDivisionError
    assert "forward" not in vars(model[0])


def test_changed_weights_are_packed_again_after_a_reset() -> None:
    model, x = layer(), torch.ones(2, 24)
    packed = PackedLinear(model)
    with torch.no_grad():
        with packed.used():
            before = model(x)
        model.weight += 1
        packed.reset()
        with packed.used():
            torch.testing.assert_close(model(x), before + 24)


def test_gradients_and_other_types_use_the_layers_own_weights() -> None:
    model, x = layer(), torch.randn(3, 24)
    with PackedLinear(model).used():
        model(x).sum().backward()
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            assert model(x).dtype == torch.bfloat16
    torch.testing.assert_close(model.weight.grad, x.sum(0).expand(40, -1))


def test_other_layers_stay_as_they_are() -> None:
    hooked = layer()
    hooked.forward = lambda rows: rows  # as accelerate's hooks do
    other = type("Other", (torch.nn.Linear,), {})(4, 4)  # it may have a product of its own
    model = torch.nn.Sequential(other, hooked, layer(dtype=torch.float64))
    assert packed_linear._packed(model) == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_processor_without_the_instructions_uses_the_layers_own_weights(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(weight: Any) -> Any:
        raise RuntimeError("mkldnn_reorder_linear_weight: bf16 path needs the cpu support avx512bw")

    model = layer(dtype=dtype)
    monkeypatch.setattr(packed_linear, "_pack", refuse)
    monkeypatch.setattr(packed_linear, "_multiplies", packed_linear._multiplies.__wrapped__)
    with torch.no_grad(), PackedLinear(model).used():
        assert model(torch.ones(2, 24, dtype=dtype)).shape == (2, 40)


def test_a_model_that_would_take_too_much_memory_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = layer()
    free = SimpleNamespace(available=4 * model.weight.nbytes)
    monkeypatch.setattr("psutil.virtual_memory", lambda: free)
    assert len(packed_linear._packed(model)) == 1
    free.available -= 4
    assert packed_linear._packed(model) == []
