"""Random decision process small enough to compute the expected gradient of an estimator exactly."""

import math
from collections.abc import Callable, Hashable, Iterator
from itertools import product
from typing import TypeAlias

import numpy as np

from gym_trl.grpo.credit import Estimator, Turns

Key: TypeAlias = Callable[[int, int], Hashable]
"""Function from turn and state to a key."""


class SmallMDP:
    """Random MDP with two states, two actions, ends on the way and a horizon; a policy; and all its episodes.

    By default every action may end an episode. With ``stops``, the first action ends it and the second never does, so
    that the policy alone decides how many turns there are.
    """

    def __init__(self, rng: np.random.Generator, horizon: int, *, stops: bool = False) -> None:
        self.horizon = horizon
        self.to = rng.dirichlet([1.0, 1.0, 0.5], size=(horizon, 2, 2))  # state 2: the end
        self.pays = rng.normal(size=(horizon, 2, 2)).round(2)
        self.policy = rng.dirichlet([1.0, 1.0], size=(horizon, 2))
        if stops:
            self.to[..., 2] = 0.0
            self.to /= self.to.sum(axis=-1, keepdims=True)
            self.to[:, :, 0] = 0.0, 0.0, 1.0

    def episodes(self) -> list[tuple[float, list[tuple[int, int, int]]]]:
        """Return all episodes that are possible: probability, and turns as (turn, state, action)."""

        def onward(turn: int, state: int) -> Iterator[tuple[float, list[tuple[int, int, int]]]]:
            if turn == self.horizon or state == 2:
                yield 1.0, []
                return
            for action, following in product((0, 1), (2,) if turn == self.horizon - 1 else (0, 1, 2)):
                chance = 1.0 if turn == self.horizon - 1 else self.to[turn, state, action, following]
                for later, turns in onward(turn + 1, following) if chance else ():
                    here = (turn, state, action)
                    yield self.policy[turn, state, action] * chance * later, [here, *turns]

        return list(onward(0, 0))

    def gradient(self, estimator: Estimator, size: int, key: Key, *, markov: bool) -> np.ndarray:
        """Return the expected policy gradient with an estimator, over all groups of ``size`` episodes."""
        total = np.zeros_like(self.pays)
        for group in product(self.episodes(), repeat=size):
            members = [
                Turns([self.pays[at] for at in turns], [key(t, s) for t, s, _ in turns], markov=markov)
                for _, turns in group
            ]
            chance = math.prod(one for one, _ in group) / size
            for (_, turns), advantages in zip(group, estimator(members), strict=True):
                for at, advantage in zip(turns, advantages, strict=True):
                    total[at] += chance * advantage
                    total[at[:2]] -= chance * advantage * self.policy[at[:2]]
        return total

    def exact_gradient(self) -> np.ndarray:
        """Return the gradient of the expected return by the policy's logits, by backward induction."""
        value = np.zeros((self.horizon + 1, 3))
        advantage = np.zeros_like(self.pays)
        for turn in reversed(range(self.horizon)):
            quality = self.pays[turn] + (self.to[turn] @ value[turn + 1] if turn < self.horizon - 1 else 0.0)
            value[turn, :2] = (self.policy[turn] * quality).sum(axis=-1)
            advantage[turn] = quality - value[turn, :2, None]
        visits = np.array([1.0, 0.0])
        gradient = np.zeros_like(self.pays)
        for turn in range(self.horizon):
            gradient[turn] = visits[:, None] * self.policy[turn] * advantage[turn]
            visits = np.einsum("s,sa,san->n", visits, self.policy[turn], self.to[turn])[:2]
        return gradient
