"""Precision of matrix products on CUDA devices, a setting of the whole process."""

from __future__ import annotations

import pytest
import torch

from finrl_pod.native.device import matmul_precision


def test_tf32_is_used_inside_only() -> None:
    before = torch.get_float32_matmul_precision()
    with matmul_precision("tf32", torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(("precision", "device"), [("float32", "cuda"), ("tf32", "cpu")])
def test_other_products_are_left_alone(precision: str, device: str) -> None:
    before = torch.get_float32_matmul_precision()
    with matmul_precision(precision, torch.device(device)):
        assert torch.get_float32_matmul_precision() == before
