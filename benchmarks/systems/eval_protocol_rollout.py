# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs, ignore-errors
"""Eval Protocol's own ``create_openenv_vllm_rollout_func`` around a game with an OpenEnv client's interface."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

HOME = Path(__file__).parents[2] / "runs" / "benchmarks" / "eval-protocol"
NOTES = (
    "`trainer.llm`, which TRL has not had since 0.28, is set to the engine",
    "the environment is made by `env_factory`: its own ways to make one call names that OpenEnv's client does not have",
    "prompts are plain text: a conversation is refused",
    "it can tell its environments no seed, so that it plays other games than all the others",
)


@dataclass
class Seen:
    """Result type of OpenEnv's clients."""

    observation: str
    reward: float | None = None
    done: bool = False


class GameClient:
    """The game as an OpenEnv client, which accepts no seed and draws one."""

    def __init__(self, game, turns):
        self._env, self._turns = game.make(), turns
        turns.append(0)

    def reset(self):
        """Start a random game."""
        return Seen(self._env.reset()[0])

    def step(self, action):
        """Act."""
        self._turns[-1] += 1
        observation, reward, terminated, truncated, _ = self._env.step(action)
        return Seen(observation, float(reward), terminated or truncated)

    def close(self):
        """Close the client, as OpenEnv's clients can."""
        self._env.close()


def play(game, generator):
    """Call the rollout function once, as ``GRPOTrainer`` would."""
    rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    os.environ["HOME"] = str(HOME)  # it logs every turn to SQLite, there
    os.environ["EP_DISABLE_AUTO_BROWSER"] = "1"
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no network requests
    from eval_protocol.pytest.integrations.openenv_trl_vllm import create_openenv_vllm_rollout_func

    from gym_trl.executors.step import read_instructions
    from gym_trl.grpo.dataset import make_dataset
    from gym_trl.types import Task
    from systems import Played, Run
    from systems.trainers import make_trainer

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
    rows = make_dataset([Task(game.env_id, seed) for seed in game.seeds])
    trainer = make_trainer(game, generator, rows, rollout_func=rollout_func)
    trainer.llm = generator.llm
    rules = read_instructions(game.make())
    with generator.measured() as counts:
        columns = rollout_func([rules for _ in game.seeds], trainer)
    # Its rows have neither a mask nor rewards: without an evaluation test `eval_score` is 0.0 for all of them.
    played = [
        Played(generator.seed_of(prompt), prompt, list(completion), None, list(logprobs), score, count)
        for prompt, completion, logprobs, score, count in zip(
            columns["prompt_ids"],
            columns["completion_ids"],
            columns["logprobs"],
            columns["eval_score"],
            turns,
            strict=True,
        )
    ]
    return Run(played, counts)
