"""Train a tiny model that calls tools, in TRL's own loop, and record the results: run by the tests.

A tiny model calls nothing by itself, so its turns are written by the players below, and all else is the trainer's: the
rendering, the parsing of calls, the loop, the masks, the loss. Argument: a folder to write to.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from support import tiny_trainer
from trl import GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

from gym_trl import GymGRPOTrainer, GymSpec
from gym_trl.errors import ConfigError, InfrastructureError
from gym_trl.testing import tiny_model, tiny_tokenizer

PENALTY = 0.25


def tool_tokenizer():
    """Return a character tokenizer with Qwen3's template, whose calls TRL can parse."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"], "eos_token": "<|im_end|>"})
    tokenizer.chat_template = qwen3_chat_template
    return tokenizer


def call(name, **arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


MISTAKES = [call("step", action="4"), call("guess", word="four"), call("guess", number="four"), call("close")]


def halve(told):
    """Return the next guess of 1 to 8, from the hints so far."""
    low, high, guess = 1, 8, 4
    for answer in told:
        low, high = (guess + 1, high) if answer.startswith("Higher") else (low, guess - 1)
        guess = (low + high) // 2
    return guess


def play(text):
    """Return the next turn of the player whose letter precedes its first call."""
    _, _, said = text.rpartition("<|im_start|>user\nFind")
    turns = said.partition("<|im_start|>assistant\n")[2]
    # TRL's asynchronous worker renders the history again, and Qwen3's template puts thinking before the letter.
    found = re.search(r"[A-Z](?=\s*<tool_call>)", turns)
    player = found and found[0]
    told = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", turns, re.DOTALL)
    over = any("over" in answer for answer in told)
    guesses = [answer for answer in told if re.match("Higher|Lower", answer)]
    if player == "W":  # wins and stops
        return "Done." if over else call("guess", number=halve(guesses))
    if player == "Q":  # leaves the game after one guess, which was out of range
        return "I do not know."
    if player == "L":  # wins and goes on calling
        late = sum(answer == "The game is over." for answer in told)
        if over:
            return "Done." if late else call("guess", number=1) + call("guess", number=2)
        return call("guess", number=halve(guesses))
    assert player == "E"  # makes every mistake there is, then wins
    wrong = sum("error" in answer for answer in told)
    if wrong < len(MISTAKES):
        return MISTAKES[wrong]
    return "Done." if over else call("guess", number=halve(guesses))


def opening(row):
    """Return the first turns of the members of a group."""
    first = call("guess", number=4)
    return ["W" + first, "Q" + call("guess", number=9), "L" + first, "E" + MISTAKES[0]][row % 4]


TRAINER: Any = object


class Records(TRAINER):
    """Methods of a trainer that keeps its requests, the results, and the batches made of them."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.asked, self.steps = [], []

    def _generate_single_turn(self, prompt_ids, *arguments, **options):
        decoded = [self.processing_class.decode(ids) for ids in prompt_ids]
        turns = [play(text) if self.asked else opening(row) for row, text in enumerate(decoded)]
        ids = [self.processing_class.encode(turn, add_special_tokens=False) for turn in turns]
        answers = [[*one, self.processing_class.eos_token_id] for one in ids]
        self.asked.append([(list(prompt), list(answer)) for prompt, answer in zip(prompt_ids, answers, strict=True)])
        return answers, None

    def _generate_and_score_completions(self, inputs):
        self.asked = []
        output = super()._generate_and_score_completions(inputs)
        rows = {}
        for name, mask in (("prompt_ids", "prompt_mask"), ("completion_ids", "completion_mask")):
            kept = zip(output[name], output[mask].bool(), strict=True)
            rows[name] = [ids[on].tolist() for ids, on in kept]
        length = [len(ids) for ids in rows["completion_ids"]]
        rows["tool_mask"] = [mask[:n].tolist() for mask, n in zip(output["tool_mask"], length, strict=True)]
        self.steps.append(
            {
                **rows,
                "asked": self.asked,
                "advantages": output["advantages"].tolist(),
                "outcomes": [environment._column() for environment in self.environments],
                "prompts": [self.processing_class.decode(ids) for ids in rows["prompt_ids"]],
                "texts": [self.processing_class.decode(ids) for ids in rows["completion_ids"]],
            }
        )
        return output


class Recording(Records, GymGRPOTrainer):
    """This library's trainer."""


class Stock(Records, GRPOTrainer):
    """TRL's trainer."""


class FailsAtNine(gym.Wrapper):
    """Environment that fails after a guess of 9, which player Q makes."""

    def step(self, action):
        if action == "9":
            raise InfrastructureError("the machine is gone")
        return self.env.step(action)


def generous(completions, **_):
    """Return a reward for every row."""
    return [float(1000 + len(str(completion))) for completion in completions]


def main(folder):
    report = train(folder, 2)
    failing = {"reward_funcs": [generous], "wrappers": [FailsAtNine]}
    [report["failing"]] = train(folder, 1, **failing)["steps"]
    report["stock"] = train(folder, 2, kind=Stock)
    try:
        train(folder, 1, kind=Stock, **failing)
    except ConfigError as error:
        report["refused"] = str(error)
    (folder / "report.json").write_text(json.dumps(report))


def train(folder, steps, *, kind=Recording, reward_funcs=(), wrappers=()):
    spec = GymSpec(
        "TrlEnv/GuessNumber-v0",
        env_kwargs={"high": 8, "turns": 4},
        num_tasks=16,
        invalid_penalty=PENALTY,
        wrappers=wrappers,
        executor="inline",
    )
    tokenizer = tool_tokenizer()
    model = tiny_model(tokenizer, width=32, layers=1)
    model.config.max_position_embeddings = 4096  # characters are many tokens
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    grpo = {"max_steps": steps, "per_device_train_batch_size": 8, "max_completion_length": 2500}
    trainer = tiny_trainer.make(
        folder,
        spec,
        kind,
        grpo={**grpo, "shuffle_dataset": False},
        model=model,
        processing_class=tokenizer,
        rollout_func=None,
        environment_factory=spec.environment_factory,
        reward_funcs=[*spec.reward_funcs, *reward_funcs],
    )
    trainer.train()
    changed = any(not torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    return {"steps": trainer.steps, "logs": trainer.state.log_history, "changed": changed}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
