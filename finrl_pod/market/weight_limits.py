"""Limits on weights: of single assets, of groups of assets, and on the number of names that are held.

`limit_weights` bounds the weights of all assets. `few_names` chooses the assets that are held:

    K = max_holdings less holdings that cannot be traded, at most W / min_position        W: sum of the weights
    k_g = max(1, K cap_g / W) rounded down                             names of group g: W / K each keeps its cap
    names: the K largest weights, at most k_g of group g; a weight that is held counts `STAY` times
    w = e + theta (p - e), theta in [0, 1] as large as min_position allows

e are equal weights, p the weights of the names in proportion; `limit_weights` bounds both and keeps the sum W.
The names are a step function of the weights. So gradients need a relaxation: `relaxed_names` takes p from

    w_i sigmoid(log(w_i / t) / temperature)        t: between the last name that is held and the first that is not

and is the exact rule in the limit of temperature 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from finrl_pod.types import Tensor

STAY = 1.2  # a name is replaced by one whose weight is larger by a fifth: others would change places every day
HELD = 1e-6  # smaller weights are what rounding leaves of a sale
TEMPERATURE = 0.1  # of `relaxed_names`: names within a tenth of the threshold have most of the gradient
NO_LIMIT = 1e3
_EPSILON = 1e-6


class GroupLimits(NamedTuple):
    """Largest sums of the weights of groups.

    members: [G + 1, N], 1 for the assets of a group; the last row has the assets of no group. room: [.., G + 1].
    """

    members: Tensor
    room: Tensor


class NameLimits(NamedTuple):
    """Limits of an account of few names.

    max_names: [.., 1]. smallest, largest: limits of the weight of a name. groups: None without limits.
    """

    max_names: Tensor
    smallest: float
    largest: float
    groups: GroupLimits | None


class Names(NamedTuple):
    """A choice of names.

    is_held: [.., N] bool. is_full: [.., N] bool, assets of a group that has enough names without them. centre: [.., N],
    equal weights of the names within the limits. pull: [.., 1], `theta`.
    """

    is_held: Tensor
    is_full: Tensor
    centre: Tensor
    pull: Tensor


def cap_weights(weights: Tensor, limit: float | Tensor) -> Tensor:
    """min(limit, c w) for weights [.., N], with c >= 1 such that the sum is kept as far as possible.

    limit: [.., N], or a number for all; 1 or more is no limit. c is found by sorting. The gradient follows the active
    set: capped weights are constant, the others share the rest in proportion.
    """
    if isinstance(limit, float):
        if limit >= 1.0:
            return weights
        limit = weights.new_full((1,), limit)
    tiny = torch.finfo(weights.dtype).tiny
    limits = limit.expand_as(weights)
    total = weights.sum(-1, keepdim=True)
    order = (weights.detach() / limits.clamp(min=tiny)).argsort(stable=True, dim=-1, descending=True)
    sorted_weights = weights.detach().gather(-1, order)
    sorted_limits = limits.gather(-1, order)
    tail_sums = sorted_weights.flip(-1).cumsum(-1).flip(-1)  # of the k-th largest, relative to its limit, and the rest
    spent_limits = sorted_limits.cumsum(-1) - sorted_limits
    scale = (total.detach() - spent_limits).clamp(min=0) / tail_sums.clamp(min=tiny)
    fits = (sorted_weights * scale <= sorted_limits) & (tail_sums > 0)  # True from the number of capped weights on
    count = torch.where(fits.any(-1, keepdim=True), fits.int().argmax(-1, keepdim=True), weights.shape[-1])
    at_limit = (order.argsort(-1) < count) & (weights > 0)
    free = torch.where(at_limit, 0.0, weights)
    room = (total - torch.where(at_limit, limits, 0.0).sum(-1, keepdim=True)).clamp(min=0)
    c = room / free.sum(-1, keepdim=True).clamp(min=tiny)
    return torch.where(at_limit, limits, torch.where(count > 0, free * c, free))


def limit_weights(weights: Tensor, largest: float, groups: GroupLimits | None) -> Tensor:
    """Weights [.., N] of at most `largest` and within the limits of their groups, with the sum as far as possible.

    What an asset may not have goes to the others of its group in proportion, what a group may not have to the others.
    """
    if groups is None:
        return cap_weights(weights, largest)
    members = groups.members
    totals = weights @ members.T
    room = groups.room
    if largest < 1.0:
        room = torch.minimum(room, largest * ((weights > 0).to(weights.dtype) @ members.T))
    share = cap_weights(totals, room) / totals.clamp(min=torch.finfo(weights.dtype).tiny)
    weights = weights * (share @ members)
    if largest >= 1.0:
        return weights
    return torch.stack([cap_weights(weights * group, largest) for group in members]).sum(0)


def few_names(weights: Tensor, held_weights: Tensor, limits: NameLimits) -> Tensor:
    """Weights [.., N] of few names, with the sum of `weights` [.., N] as far as the limits allow.

    held_weights: [.., N]. Its gradient is the gradient of `relaxed_names`.
    """
    with torch.no_grad():
        names = chosen_names(weights, held_weights, limits)
        exact = _mixed_weights(names, torch.where(names.is_held, weights, 0.0), limits)
    if not weights.requires_grad:
        return exact
    soft_weights = relaxed_names(weights, held_weights, limits, names)
    return exact + (soft_weights - soft_weights.detach())


def relaxed_names(
    weights: Tensor, held_weights: Tensor, limits: NameLimits, names: Names, temperature: float = TEMPERATURE
) -> Tensor:
    """Weights [.., N] with soft names, differentiable in `weights` [.., N]; other arguments as for `few_names`."""
    rank = _log_rank(weights, held_weights)
    threshold = _threshold(rank, names.is_held, ~names.is_held & ~names.is_full)
    if limits.groups is not None:
        member = limits.groups.members > 0
        may_be_held = ((weights > 0) & ~names.is_full).unsqueeze(-2)
        thresholds = _threshold(rank.unsqueeze(-2), member & may_be_held, member & names.is_full.unsqueeze(-2))
        threshold = torch.maximum(threshold, thresholds.squeeze(-1) @ limits.groups.members)
    gate = torch.sigmoid((rank - threshold) / temperature)
    return _mixed_weights(names, torch.where(gate > _EPSILON, weights * gate, 0.0), limits)


def chosen_names(weights: Tensor, held_weights: Tensor, limits: NameLimits) -> Names:
    """The names that `few_names` holds; arguments as there."""
    tiny = torch.finfo(weights.dtype).tiny
    total = weights.sum(-1, keepdim=True)
    count = limits.max_names
    if limits.smallest > 0:
        count = torch.minimum(count, (total / limits.smallest + _EPSILON).floor())
    order = _log_rank(weights, held_weights).argsort(stable=True, dim=-1, descending=True)
    has_room = weights.gather(-1, order) > 0
    groups = limits.groups
    if groups is not None:
        names_of_group = (count * groups.room / total.clamp(min=tiny) + _EPSILON).floor().clamp(min=1)
        names_of_group = torch.where(groups.room > limits.smallest - _EPSILON, names_of_group, 0.0)
        member = groups.members.T[order]
        has_room = has_room & (member * (member.cumsum(-2) <= names_of_group.unsqueeze(-2)) > 0).any(-1)
    is_held = has_room & (has_room.cumsum(-1) <= count)
    rank = order.argsort(-1)
    is_held = is_held.gather(-1, rank)
    has_room = has_room.gather(-1, rank)
    equal = torch.where(is_held, total / is_held.sum(-1, keepdim=True).clamp(min=1), 0.0)
    centre = limit_weights(equal, limits.largest, groups)
    names = Names(is_held, ~has_room & (weights > 0), centre, torch.ones_like(total))
    fall = centre - _mixed_weights(names, torch.where(is_held, weights, 0.0), limits)
    falls = fall > 100 * torch.finfo(weights.dtype).eps
    pull = torch.where(falls, (centre - limits.smallest) / fall, 1.0).amin(-1, keepdim=True)
    return names._replace(pull=pull.clamp(0, 1))


def _mixed_weights(names: Names, weights: Tensor, limits: NameLimits) -> Tensor:
    """The weights [.., N] between the centre of the names and weights in proportion to some [.., N]."""
    total = names.centre.sum(-1, keepdim=True)
    proportional = weights * (total / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny))
    return names.centre + names.pull * (limit_weights(proportional, limits.largest, limits.groups) - names.centre)


def _log_rank(weights: Tensor, held_weights: Tensor) -> Tensor:
    """Log weights [.., N] by which names are chosen."""
    counted_weights = torch.where(held_weights > HELD, STAY * weights, weights)
    return counted_weights.clamp(min=torch.finfo(weights.dtype).tiny).log()


def _threshold(rank: Tensor, is_inside: Tensor, is_outside: Tensor) -> Tensor:
    """[.., 1]: between the lowest rank inside [.., N] and the highest outside [.., N]; below all if none is outside."""
    lowest = torch.where(is_inside, rank, NO_LIMIT).amin(-1, keepdim=True)
    highest = torch.where(is_outside, rank, -NO_LIMIT).amax(-1, keepdim=True)
    return torch.where(is_outside.any(-1, keepdim=True), (lowest + highest) / 2, -NO_LIMIT)
