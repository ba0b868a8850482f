"""Train a model on a data set of questions and answers: arithmetic, crossword clues or names of languages.

$ python examples/train_questions.py --data crosswords --learning_rate 2e-6      # any field of GRPOConfig

The data sets are in the packages reasoning-gym, textarena and datasets; other verifiers, such as a judge, are in
docs/guides/questions_and_answers.md.
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from trl import GRPOConfig, GRPOTrainer, TrlParser

from gym_trl import GymSpec


def arithmetic() -> dict[str, Any]:
    """Return sums and differences with numbers as answers."""
    import reasoning_gym

    rows = list(reasoning_gym.create_dataset("basic_arithmetic", size=2_000, seed=0))
    return {"dataset": rows, "prompt": "question", "answer": "answer", "verify": "numeric"}


def crosswords() -> dict[str, Any]:
    """Return clues and their words."""
    lines = files("textarena").joinpath("envs/Crosswords/words_clues.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [{"word": row["word"], "clue": clue} for row in map(json.loads, lines) for clue in row["clues"].values()]
    return {"dataset": rows, "prompt": "clue", "answer": "word", "verify": "exact"}


def languages() -> dict[str, Any]:
    """Return codes of languages and their names."""
    names = json.loads(files("datasets").joinpath("utils/resources/languages.json").read_text(encoding="utf-8"))
    rows = [{"code": code, "name": name} for code, name in names.items() if len(code) <= 3]
    question = "Which language has the ISO 639 code {code}?"
    return {"dataset": rows, "prompt": question, "answer": "name", "verify": "exact"}


@dataclass
class ScriptArguments:
    """Arguments beside those of GRPOConfig."""

    model: str = "Qwen/Qwen3-0.6B"
    data: Literal["arithmetic", "crosswords", "languages"] = "arithmetic"


parser = TrlParser((ScriptArguments, GRPOConfig))
parser.set_defaults(output_dir="runs/qa", max_steps=200, max_completion_length=1024, learning_rate=1e-6, report_to=[])
parser.set_defaults(per_device_train_batch_size=8, gradient_accumulation_steps=8, num_generations=8, logging_steps=1)

if __name__ == "__main__":
    own, args = parser.parse_args_and_config()
    make = {"arithmetic": arithmetic, "crosswords": crosswords, "languages": languages}[own.data]
    spec = GymSpec.from_dataset(**make(), max_tokens_per_turn=512)
    trainer = GRPOTrainer(own.model, spec.reward_funcs, args, spec.train_dataset, rollout_func=spec.rollout_func)
    trainer.train()
    trainer.save_model()
