# mypy: ignore-errors
"""Eval Protocol's own ``create_openenv_vllm_rollout_func`` around a game with an OpenEnv client's interface."""

import logging
import os
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace

HOME = Path(__file__).parents[2] / "runs" / "benchmarks" / "eval-protocol"


class GameClient:
    """The game as an OpenEnv client, which accepts no seed and draws one."""

    def __init__(self, game, turns):
        self._env, self._turns = game.make(), turns
        turns.append(0)

    def reset(self):
        return SimpleNamespace(observation=self._env.reset()[0], reward=None, done=False)

    def step(self, action):
        self._turns[-1] += 1
        observation, reward, terminated, truncated, _ = self._env.step(action)
        return SimpleNamespace(observation=observation, reward=float(reward), done=terminated or truncated)

    def close(self):
        self._env.close()


def play(game, generator):
    """Play without a mask or rewards, which it does not return: without an evaluation test ``eval_score`` is 0.0."""
    rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    os.environ["HOME"] = str(HOME)  # it logs every turn to SQLite, there
    os.environ["EP_DISABLE_AUTO_BROWSER"] = "1"
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no network requests
    from eval_protocol.pytest.integrations.openenv_trl_vllm import create_openenv_vllm_rollout_func

    from gym_trl.wrappers.base import instructions_of
    from systems.trainers import call_rollout_func, make_trainer

    logging.getLogger("eval_protocol").setLevel(logging.ERROR)
    turns = []
    rollout_func = create_openenv_vllm_rollout_func(
        env_factory=lambda: GameClient(game, turns),
        prompt_builder=lambda observation, step, history: observation,
        action_parser=lambda text: text,
        max_steps=game.most_turns,
        completion_params={"max_tokens": game.tokens_per_turn},
        concurrency=len(game.seeds),
    )
    prompts, trainer = [instructions_of(game.make())] * len(game.seeds), make_trainer(game, generator)
    trainer.llm = generator.llm
    return call_rollout_func(
        game, generator, rollout_func, rewards="eval_score", turns=turns, prompts=prompts, trainer=trainer
    )
