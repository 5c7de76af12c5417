"""Philox against the published vectors, and the distributions of what is drawn from it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from finrl_pod.native.device import as_on_device
from finrl_pod.native.philox import WORD, PhiloxGenerator, philox, philox_rounds, random_source
from finrl_pod.random import MemberGenerators, RandomSource

# Of kat_vectors in Random123 1.14: counter, key, result of philox4x32-10.
PUBLISHED = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
N = 200_000
CPU = torch.device("cpu")


@pytest.mark.parametrize(("counter", "key", "expected"), PUBLISHED)
def test_rounds_give_the_published_words(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    a, b, c, d = (torch.tensor([[x]]) for x in counter)
    low, high = (torch.tensor([x]) for x in key)
    assert tuple(int(x) for x in philox_rounds((a, b, c, d), (low, high))) == expected


def test_words_are_those_of_key_and_count() -> None:
    (_, (low, high), _), n = PUBLISHED[2], 6
    keys, counts = torch.tensor([low | high << 32, 7]), torch.tensor([3, 1 << 40])
    words = philox(keys, counts, n, "words", torch.int64)
    one = torch.tensor([[1]])
    expected = philox_rounds((one, 0 * one, 3 * one, 0 * one), (torch.tensor([low]), torch.tensor([high])))
    assert words[0, 4:].tolist() == [int(x) for x in expected[:2]]
    assert words.shape == (2, n)


@pytest.mark.slow
@pytest.mark.parametrize("source", [PhiloxGenerator([5, 6]), random_source(3, (0, 1), "x", CPU)])
def test_draws_follow_their_distributions(source: RandomSource) -> None:
    for drawn, law in (
        (source.normal((N,), torch.float32), "norm"),
        (source.uniform((N,), torch.float32), "uniform"),
        (source.exponential((N,), torch.float32), "expon"),
    ):
        numbers = drawn.double().numpy()
        assert stats.kstest(numbers[0], law).pvalue > 1e-6
        assert abs(np.corrcoef(numbers)[0, 1]) < 5 / N**0.5
        assert abs(np.corrcoef(numbers[0, 1:], numbers[0, :-1])[0, 1]) < 5 / N**0.5
    integers = source.integers(10, (N,))
    assert stats.chisquare(np.bincount(integers[0].numpy(), minlength=10)).pvalue > 1e-6
    orders = torch.stack([source.permutation(3)[0] for _ in range(600)])
    assert (orders.sort(1).values == torch.arange(3)).all()
    counts = np.unique(orders.numpy(), axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-6


def test_numbers_of_a_member_depend_on_its_key_and_its_draws_alone() -> None:
    together, alone = PhiloxGenerator([11, 12, 13]), PhiloxGenerator([12])
    for _ in range(2):
        assert torch.equal(together.normal((4, 5), torch.float64)[1], alone.normal((4, 5), torch.float64)[0])
    moved = together.normal((4, 5), torch.float64, dim=1)
    assert moved.shape == (4, 3, 5)
    assert torch.equal(moved[:, 1], alone.normal((4, 5), torch.float64)[0])
    assert not torch.equal(moved[:, 0], moved[:, 2])


def test_a_draw_may_be_empty() -> None:
    assert PhiloxGenerator([1, 2]).normal((3, 0), torch.float32, dim=1).shape == (3, 2, 0)


def test_state_of_a_member_is_restored() -> None:
    source = PhiloxGenerator([1, 2])
    source.normal((3,), torch.float32)
    before = [member.get_state() for member in source.members]
    first = source.normal((3,), torch.float32)
    source.members[1].set_state(before[1])
    again = source.normal((3,), torch.float32)
    assert torch.equal(again[1], first[1])
    assert not torch.equal(again[0], first[0])


def test_source_goes_by_the_device() -> None:
    assert isinstance(random_source(0, (0,), "x", CPU), MemberGenerators)
    with as_on_device():
        assert isinstance(random_source(0, (0,), "x", CPU), PhiloxGenerator)


def test_numbers_of_steps_are_computed_again_from_their_count() -> None:
    keys = [5, 6]
    source, other = PhiloxGenerator(keys), PhiloxGenerator(keys)
    steps = source.normal_steps(3, (2, 5), torch.float32)
    assert (len(steps), steps.dtype) == (3, torch.float32)
    assert source.counts.tolist() == [3, 3]
    expected = [other.normal((2, 5), torch.float32) for _ in range(3)]
    for numbers in (list(steps), [steps[h] for h in range(3)]):
        assert all(torch.equal(x, y) for x, y in zip(numbers, expected, strict=True))
    assert torch.equal(source.normal((4,), torch.float32), other.normal((4,), torch.float32))
