"""Random streams: keyed by seed, member and purpose, and the same for ever."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from finrl_pod.random import generator, generators, key

# Written down once: a change of these makes every recorded run unrepeatable.
GOLDEN = {
    (0, 0, "initial weights"): 669738161813283724,
    (7, 3, "actions"): 7629781939801986881,
    (2**40, 1000, "minibatches"): 7983627089090214714,
}
GOLDEN_DRAWS = [546, 304, 284, 78, 720, 556]


def test_keys_are_stable() -> None:
    assert {parts: key(*parts) for parts in GOLDEN} == GOLDEN


def test_draws_are_stable() -> None:
    assert torch.randint(0, 1000, (6,), generator=generator(7, 3, "actions")).tolist() == GOLDEN_DRAWS


def test_seed_member_and_purpose_each_change_the_key() -> None:
    purposes = ("initial weights", "minibatches", "actions", "starts", "first episode")
    parts = list(itertools.product(range(12), range(12), purposes))
    keys = [key(*each) for each in parts]
    assert len(set(keys)) == len(parts)
    assert key(1, 2, "actions") != key(2, 1, "actions")


def test_keys_fit_a_generator_and_use_their_width() -> None:
    keys = np.array([key(seed, 0, "actions") for seed in range(400)], dtype=np.uint64)
    assert int(keys.max()) < 2**63
    shares = [float(((keys >> np.uint64(bit)) & np.uint64(1)).mean()) for bit in range(63)]
    assert all(0.35 < share < 0.65 for share in shares)


def test_a_generator_draws_the_same_alone_and_in_a_population() -> None:
    together = [torch.rand(4, generator=g) for g in generators(5, (3, 0, 8), "actions")]
    for member, drawn in zip((3, 0, 8), together, strict=True):
        assert torch.equal(drawn, torch.rand(4, generator=generator(5, member, "actions")))
    assert not torch.equal(together[0], together[1])


def test_the_global_generator_is_not_used() -> None:
    before = torch.get_rng_state()
    torch.rand(4, generator=generator(5, 0, "actions"))
    assert torch.equal(torch.get_rng_state(), before)
