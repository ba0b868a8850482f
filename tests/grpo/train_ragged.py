"""Train a tiny model on ragged episodes, and write what was played, batched and logged; run as one of two processes.

Arguments: a folder to write to, and a JSON object: ``env`` (``game`` for one of two seats), ``spec``, ``grpo``,
``bonus`` for a second reward function, ``evaluate``.
"""

import json
import sys
import warnings
from pathlib import Path

from support import tiny_trainer

from grpo.gradient_grid import Ragged, RaggedGame


def much(episode, **_):
    """Pay a lot for unscored episodes."""
    return [len(one.turns) / 7 if one.scored else 1000.0 for one in episode]


def main(folder, options):
    rollouts, scores = [], []

    def keep(rollout):
        episodes = [
            {
                "task": one.task.to_json(),
                "seat": one.seat,
                "return": one.episode_return,
                "success": one.success,
                "turns": len(one.turns),
                "texts": [turn.answer.text for turn in one.turns],
                "reason": str(one.stop_reason),
                "opening": one.messages[0].content if one.messages else "",
            }
            for one in rollout.episodes
        ]
        rollouts.append({"split": rollout.split, "step": rollout.step, "episodes": episodes})

    usual = {"max_tokens_per_turn": 3, "executor": "inline", "num_tasks": 24, "num_eval_tasks": 5, "instructions": ""}
    env = RaggedGame if options.get("env") == "game" else Ragged
    spec = tiny_trainer.plain_spec(env, **{**usual, **options.get("spec", {})}, on_rollout=keep)
    grpo = {"max_steps": 2, "per_device_train_batch_size": 6, "max_completion_length": 96, "shuffle_dataset": False}
    trainer = tiny_trainer.make(
        folder / "out",
        spec,
        grpo={**grpo, **options.get("grpo", {})},
        reward_funcs=[*spec.reward_funcs, *([much] if options.get("bonus") else [])],
    )
    score = trainer._generate_and_score_completions

    def scored(inputs):
        out = score(inputs)
        if trainer.model.training:
            tokens = (out["tool_mask"] * out["completion_mask"]).sum(1).tolist()
            played = [row["episode"] for row in inputs]
            scores.append(
                {
                    "tokens": tokens,
                    "moves": out["advantages"].flatten(1).any(1).tolist()
                    if out["advantages"].ndim > 1
                    else (out["advantages"] != 0).tolist(),
                    "advantages": [[turn.advantage for turn in one.turns] if one.scored else [] for one in played],
                }
            )
        return out

    trainer._generate_and_score_completions = scored
    trainer.train()
    evaluation = trainer.evaluate() if options.get("evaluate") else {}
    report = {"rollouts": rollouts, "scores": scores, "logs": trainer.state.log_history, "evaluation": evaluation}
    tiny_trainer.end(folder, {**report, "weights": tiny_trainer.weights_of(trainer).tolist()[:2000]})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
