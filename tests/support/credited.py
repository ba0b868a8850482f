"""Advantages that credit per turn assigns to episodes, with TRL's way to call reward functions and no model."""

import math
from types import SimpleNamespace

import torch

from gym_trl.grpo.credit import TurnCredit
from gym_trl.grpo.credit.columns import turn_columns
from gym_trl.grpo.credit.turn_credit import CreditPart
from gym_trl.grpo.rewards import env_reward

SIZE = 4
"""Number of episodes of a group."""


def columns_of(episodes):
    """Return the rows of these episodes as reward functions get them."""
    names = turn_columns(episodes) | {"episode_return": [one.episode_return for one in episodes]}
    return [dict(zip(names, row, strict=True)) for row in zip(*names.values(), strict=True)]


def credited(episodes, credit, reward_funcs=(env_reward,), weights=None, *, scale="none"):
    """Return what credit per turn makes of episodes, with TRL's way to call reward functions."""
    rows = columns_of(episodes)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    paid = [[math.nan if value is None else value for value in function(**columns)] for function in reward_funcs]
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(process_index=0, is_main_process=True),
        num_generations=SIZE,
        state=SimpleNamespace(stateful_callbacks={}),
        reward_funcs=list(reward_funcs),
        reward_weights=torch.tensor(weights or [1.0] * len(reward_funcs)),
        scale_rewards=scale,
        _metrics={"train": {}},
        _log_completion_extra=lambda name, values: None,
    )
    rewards = torch.tensor(paid).T
    for place, one in enumerate(episodes):
        if not one.scored:
            rewards[place] = math.nan
    credit = credit if isinstance(credit, TurnCredit) else TurnCredit(credit)
    found = CreditPart(credit).assign(trainer, rows, rewards)
    assert found is not None
    return found
