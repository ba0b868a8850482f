"""Train a tiny model with credit per turn on given episodes: run by the tests, alone or as one of two processes.

Arguments: a folder to write to. All groups are of the same three episodes and one that is unscored; the advantages of
their turns are computed by hand.
"""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import trl

from gym_trl import GymSpec
from gym_trl.grpo.adopt import attach
from gym_trl.grpo.credit import TurnCredit
from gym_trl.grpo.rewards import env_reward
from support import tiny_trainer

RANK, PROCESSES = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
GROUPS, SIZE, PROMPT = 3, 4, [5, 6, 7]
# State keys and rewards of three episodes: two pass "a", and one of these finds 1.
EPISODES = [
    (["s", "a", "b", "won"], [0.0, 0.0, 1.0]),
    (["s", "a", "c", "lost"], [0.0, 0.0, 0.0]),
    (["s", "d", "lost"], [0.0, 0.0]),
]
# By hand, for keys that are declared Markov. Returns to go are 1 1 1, 0 0 0 and 0 0.
# Q of "s": (1 + 0) / 2 through "a", for either of the first two, and 0 through "d". All other Q are returns to go.
# V of "s": thirds of the others' returns and their mean: 0, (0.5 + 1 + 0) / 3, (0.5 + 1 + 0) / 3.
# V of "a": halves of the other's return and of the others' mean at the second turn: 0, (0.5 + 1) / 2.
# V of the others: the others' mean at this turn: "b" 0, "c" 1, "d" 0.5.
BY_HAND = [[0.5, 1.0, 1.0], [0.0, -0.75, -1.0], [-0.5, -0.5]]


def rows():
    """Return the rows of all processes; the groups differ in the order of their episodes and in the unit of rewards."""
    found: list[tuple[dict[str, Any], list[float]]] = []
    for group in range(GROUPS):
        for number in [*range(group, 3), *range(group), None]:
            spans: list[tuple[int, int]] = []
            ids: list[int] = []
            mask: list[int] = []
            keys, rewards = EPISODES[number or 0]
            for turn in range(len(rewards)):
                more = [40 + group] if turn else []
                sampled = [10 + 3 * len(found) % 30 + turn + offset for offset in range(2 + (number or 0) % 2)]
                ids, mask = [*ids, *more, *sampled], [*mask, *[0] * len(more), *[1] * len(sampled)]
                spans.append((len(ids) - len(sampled), len(ids)))
            rewards = [reward * (group + 1) for reward in rewards]
            row: dict[str, Any] = {
                "prompt_ids": PROMPT,
                "completion_ids": ids,
                "env_mask": mask,
                "logprobs": [0.0] * len(ids),
            }
            row |= {"turn_rewards": rewards, "turn_spans": spans, "turn_keys": keys, "markov_keys": True}
            row |= {
                "turns_left": [],
                "turn_places": [],
                "task_key": f"task {group}",
                "turn_penalties": [0.0] * len(rewards),
                "unplayed_costs": 0.0,
                "role": None,
            }
            row |= {"episode_return": sum(rewards), "success": None, "stop_reason": "terminated", "num_turns": 3}
            by_hand = [] if number is None else [(group + 1) * value for value in BY_HAND[number]]
            if number is None:
                row |= {"completion_ids": [2], "env_mask": [0], "logprobs": [0.0], "turn_spans": []}
                row |= {"episode_return": None, "stop_reason": "env_error"}
            found.append((row, by_hand))
    return found


ROWS = rows()
PER_RANK = len(ROWS) // PROCESSES


class Play:
    """Stands in for ``spec.rollout_func``: returns the given episodes."""

    def __init__(self, credit):
        self.parts = [TurnCredit(credit)]

    def __call__(self, prompts, trainer):
        mine = ROWS[RANK * len(prompts) : (RANK + 1) * len(prompts)]
        columns = {name: [row[name] for row, _ in mine] for name in ROWS[0][0]}
        attach(trainer).note(columns)
        return columns


def nothing(completions, **_):
    return [0.0] * len(completions)


def half(turn_rewards, **_):
    """Return half of what is paid, which only the last turn of an episode is paid for here."""
    return [sum(rewards) / 2 for rewards in turn_rewards]


def train(folder, credit="pool", reward_funcs=None, evaluates=False, **grpo):
    """Train; return the trainer and the wrong advantages among those that it trained on."""
    spec = GymSpec("TrlEnv/Echo-v0", num_tasks=6, num_eval_tasks=2)
    settings: dict[str, Any] = {
        "per_device_train_batch_size": PER_RANK,
        "num_generations": SIZE,
        "max_steps": 1,
        "max_grad_norm": 0.0,
    }
    settings |= {"scale_rewards": "none", "learning_rate": 0.01, "lr_scheduler_type": "constant", **grpo}
    changes = {} if reward_funcs is None else {"reward_funcs": reward_funcs}
    trainer = tiny_trainer.make(folder / "out", spec, grpo=settings, rollout_func=Play(credit), **changes)
    by_ids = {tuple(row["completion_ids"]): (row, by_hand) for row, by_hand in ROWS}
    wrong: list[int] = []
    seen: list[int] = []
    compute = trainer._compute_loss

    def compare(model, inputs, *given, **named):
        if trainer.model.training:
            batch = (inputs[name].tolist() for name in ("completion_ids", "completion_mask", "advantages"))
            for ids, mask, advantages in zip(*batch, strict=True):
                row, by_hand = by_ids[tuple(ids[: sum(mask)])]
                right = [0.0] * len(ids)
                for (start, stop), value in zip(row["turn_spans"], by_hand, strict=True):
                    right[start:stop] = [value] * (stop - start)
                seen.append(len(by_hand))
                wrong.extend(1 for got, want in zip(advantages, right, strict=True) if abs(got - want) > 1e-6)
        return compute(model, inputs, *given, **named)

    trainer._compute_loss = compare
    trainer.train()
    if evaluates:
        trainer.evaluate()
    return trainer, {"wrong": len(wrong), "seen": len(seen), "turns": sum(seen)}


def main(folder):
    report: dict[str, Any] = {"trl": trl.__version__, "advantages": {}}
    assert len({tuple(row["completion_ids"]) for row, _ in ROWS}) == len(ROWS) - GROUPS + 1
    variants: dict[str, dict[str, Any]] = {
        "plain": {},
        "scored by another function": {"reward_funcs": [env_reward, nothing], "reward_weights": [1.0, 3.0]},
        "half the unit": {"reward_funcs": [env_reward, half], "reward_weights": [2.0, -2.0]},
        "num_iterations": {"num_iterations": 2, "max_steps": 4},
    }
    for name, grpo in variants.items():
        trainer, report["advantages"][name] = train(folder, **grpo)
        if name == "plain":
            report["logs"] = [log for log in trainer.state.log_history if "credit/company" in log]
    tiny_trainer.end(folder, report)


if __name__ == "__main__":
    warnings.simplefilter("default")
    main(Path(sys.argv[1]))
