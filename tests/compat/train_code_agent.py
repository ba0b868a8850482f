"""Train the tiny model for two steps with each kind of ``Environment``, and record the trained tokens."""

import json
import sys
from itertools import count
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from gym_trl import GymSpec
from gym_trl.engines.transformers import TransformersEngine
from gym_trl.envs.code_agent import CodeAgent
from gym_trl.integrations.code_agent import CodeAgentEnvironment, Environment, GRPOConfig, GRPOTrainer, LocalExecuter
from gym_trl.testing import tiny_model, tiny_tokenizer
from gym_trl.types import FinishReason

TOKENIZER = tiny_tokenizer()
PROBLEMS: dict[str, Any] = {"steps": 1, "turns": 3}
FOLDER = Path(sys.argv[-1])  # doctest collection imports this without an argument
ENGINE: Any = TransformersEngine


class Own(Environment):
    """Environment from the documentation."""

    def generate(self, vllm_client, generation_config, prompts):
        return vllm_client.generate(prompts=prompts, **vars(generation_config))


class Continued(Environment):
    """Environment that concatenates texts, as older ones did: a response, a reply to it, another response."""

    def generate(self, vllm_client, generation_config, prompts):
        options = {**vars(generation_config), "max_tokens": 6}
        first = vllm_client.generate(prompts=prompts, **options)
        texts = [prompt + TOKENIZER.decode(ids) + " Really? " for prompt, ids in zip(prompts, first, strict=True)]
        second = vllm_client.generate(prompts=texts, **options)
        between = TOKENIZER.encode(" Really? ", add_special_tokens=False)
        return [one + between + two for one, two in zip(first, second, strict=True)]


class Again(Environment):
    def generate(self, vllm_client, generation_config, prompts):
        ids = vllm_client.generate(prompts=prompts, **vars(generation_config))
        return [TOKENIZER.encode("x" + TOKENIZER.decode(row)) for row in ids]


class Few(Own):
    def generate(self, vllm_client, generation_config, prompts):
        return super().generate(vllm_client, generation_config, prompts[:1])


class Colder(Environment):
    def generate(self, vllm_client, generation_config, prompts):
        return vllm_client.generate(prompts=prompts, **{**vars(generation_config), "temperature": 0.5})


def reward(completion_ids, **_):
    return [float(len(ids) % 3) for ids in completion_ids]


def make(environment, **options):
    args = GRPOConfig(
        output_dir=str(FOLDER),
        max_steps=2,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=60,
        learning_rate=1e-3,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
    )
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"What is {n} * 2?"}] for n in range(8)]})
    given = {"train_dataset": rows, "reward_funcs": reward, "environment": environment}
    if environment is None:
        args.max_completion_length = 600
        options |= {"num_tasks": 8, "env_kwargs": PROBLEMS, "action_format": None, "instructions": ""}
        options |= {"max_tokens_per_turn": 8}  # of those that the script replaces
        spec = GymSpec("TrlEnv/CodeAgent-v0", executor="thread", **options)
        options = {}
        given = {name: getattr(spec, name) for name in ("train_dataset", "reward_funcs", "rollout_func")}
    return GRPOTrainer(model=tiny_model(TOKENIZER), args=args, processing_class=TOKENIZER, **given, **options)


def remembered(taken):
    """Record every response of the engine by its prompt."""
    collect = ENGINE.collect
    prompts = {}
    submit = ENGINE.submit

    def submitting(self, request):
        prompts[id(self), request.id] = list(request.prompt_ids)
        submit(self, request)

    def collecting(self):
        found = collect(self)
        for completion in found:
            taken.append((prompts[id(self), completion.request_id], list(completion.ids)))
        return found

    ENGINE.submit, ENGINE.collect = submitting, collecting


SCRIPTS: list[Any] = []


def scripted():
    """Make the engine sample a script's text, since a random model would not write a program."""
    collect, submit = ENGINE.collect, ENGINE.submit
    asked = {}

    def submitting(self, request):
        asked[request.id] = list(request.prompt_ids)
        submit(self, request)

    def collecting(self):
        return [
            completion
            if (ids := SCRIPTS[-1](TOKENIZER.decode(asked[completion.request_id]))) is None
            else type(completion)(completion.request_id, ids, [-1.0] * len(ids), FinishReason.STOP)
            for completion in collect(self)
        ]

    ENGINE.submit, ENGINE.collect = submitting, collecting


def writes_a_program(prompt):
    return None if "<output>" in prompt else TOKENIZER.encode("<code>6 * 7</code>", add_special_tokens=False)


def solutions():
    """Return the solution of each problem, by its text."""
    env, found = CodeAgent(**PROBLEMS), {}
    for task in GymSpec("TrlEnv/CodeAgent-v0", num_tasks=8, env_kwargs=PROBLEMS).tasks("train"):
        observation, _ = env.reset(seed=task.seed, options=dict(task.options))
        found[observation] = env.solve()
    return found


def tries_and_submits(prompt, turns=count(), known={}):  # noqa: B006, B008 -- one for the process
    """Run a program, and then submit the solution every second time."""
    known |= known or solutions()
    if prompt.count("<|assistant|>") == 1:
        said = "run:\nprint(6 * 7)"
    elif next(turns) % 2:
        said = "submit:\ndef solve(numbers):\n    return 0"
    else:
        said = next(solution for problem, solution in known.items() if problem in prompt)
    return TOKENIZER.encode(f"{said}<|end|>")


def train(environment, taken):
    taken.clear()
    trainer = make(environment)
    rollout, rows = trainer.rollout_func, []
    won: list[Any] = []

    def noting(prompts, trainer):
        columns = rollout(prompts, trainer)
        for prompt, ids, mask, logprobs in zip(
            *(columns[name] for name in ("prompt_ids", "completion_ids", "env_mask", "logprobs")), strict=True
        ):
            sampled, place = [], 0
            while place < len(ids):  # what the engine said to exactly what stood there
                fitting = [
                    one
                    for before, one in taken
                    if before == prompt + ids[:place] and one == ids[place : place + len(one)]
                ]
                if fitting:
                    sampled += fitting[0]
                    place += len(fitting[0])
                else:
                    place += 1
            rows.append({"ids": ids, "mask": mask, "logprobs": logprobs, "sampled": sampled})
        won.extend(episode.success for episode in columns.get("episode", ()))
        return columns

    trainer.rollout_func = noting
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.train()
    moved = max(float((new - old).abs().max()) for new, old in zip(trainer.model.parameters(), before, strict=True))
    return {"steps": trainer.state.global_step, "moved": moved, "rows": rows, "won": won}


def refusal(environment, **options):
    """Return the class of the exception with which a training is refused."""
    try:
        make(environment, **options).train()
    except ValueError as error:
        return type(error).__name__
    return "none"


def main():
    torch.manual_seed(0)
    told: dict[str, Any] = {}
    taken: list[Any] = []
    remembered(taken)
    told["own rollout"] = train(Own(), taken)
    told["continued"] = train(Continued(), taken)
    for name, environment in (("encoded again", Again()), ("too few", Few()), ("colder", Colder())):
        told[name] = refusal(environment)
    told["both"] = refusal(Own(), rollout_func=print)
    scripted()
    remembered(taken)
    SCRIPTS.append(writes_a_program)
    told["code agent"] = train(CodeAgentEnvironment(LocalExecuter(), TOKENIZER), taken)
    SCRIPTS.append(tries_and_submits)
    told["game"] = train(None, taken)
    (FOLDER / "trained.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
