"""Train a tiny model to play all seats of a game: run by the tests, alone or as one of two processes.

Arguments: a folder to write to, and settings as JSON: ``spec`` of ``GymSpec`` and ``grpo`` of ``GRPOConfig``.
"""

import json
import sys
import warnings

import gymnasium as gym
import trl
from support import tiny_trainer

from gym_trl.spaces import AnyText

KEPT = ("task", "seat", "stop_reason", "episode_return", "completion_ids", "prompt_ids", "turn_rewards", "role")


class Longest(gym.Env):
    """Game of two turns for each of two seats; who says the greater text wins, and every text is legal."""

    observation_space = action_space = AnyText()
    num_seats, zero_sum = 2, True

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._said = []
        return f"begin {self.np_random.integers(9)}", {"to_move": 0}

    def step(self, action):
        self._said.append(action)
        if len(self._said) < 4:
            return f"turn {len(self._said)}", 0.0, False, False, {"to_move": len(self._said) % 2}
        first, second = self._said[0] + self._said[2], self._said[1] + self._said[3]
        won = float(first > second) - float(first < second)
        return "over", 0.0, True, False, {"payoffs": (won, -won)}


def main(folder, settings):
    given = json.loads(settings)
    rollouts: list = []
    advantages: list = []
    options = {"seats": "self", "instructions": "", "executor": "inline", "num_tasks": 8, "num_eval_tasks": 3}
    spec = tiny_trainer.plain_spec(Longest, **{**options, **given.get("spec", {})})
    assert spec.turn_credit is not None
    spec.turn_credit.on_advantages = advantages.append
    grpo = {"max_steps": 2, "per_device_train_batch_size": 6, "num_generations": 6, "scale_rewards": "none"}
    trainer = tiny_trainer.make(folder, spec, grpo={**grpo, **given.get("grpo", {})})
    play = trainer.rollout_func

    def watched(prompts, trainer):
        columns = play(prompts, trainer)
        rollouts.append({"train": trainer.model.training, **{name: columns[name] for name in KEPT}})
        return columns

    trainer.rollout_func = watched
    trainer.train()
    logs = [log for log in trainer.state.log_history if "env/return" in log or "eval_env/return" in log]
    report = {"rollouts": rollouts, "advantages": advantages, "trl": trl.__version__, "logs": logs}
    tiny_trainer.end(folder, report)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
