"""Train a tiny model for two steps through each interface, and record the results: run by the tests, in a process.

Arguments: a folder to write to, and the names of the ways.
"""

import contextlib
import json
import os
import random
import re
import sys
import types
import warnings
from pathlib import Path
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import requests
import torch
from datasets import Dataset
from support.warm import free_port
from trl import GRPOConfig, GRPOTrainer

import gym_trl.integrations.trl_env as ours
from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.integrations.legacy_rollout import legacy_rollout_func
from gym_trl.integrations.trl_env import (
    Action,
    Delta,
    Env,
    Seed,
    TransformerTokenizer,
    Type1Processor,
    Type1ProcessorConfig,
    make_reward_func,
    make_rollout_func,
)
from gym_trl.testing import tiny_model, tiny_tokenizer
from gym_trl.types import Completion

torch.set_num_threads(1)


class GuessEnv(Env):
    """Environment like trl-env's own example, in the functional protocol."""

    def reset(self, seed: Seed) -> tuple[Env, Delta]:
        self.target, self.turn, self.reward, self.alive = int(seed), 0, 0.0, True
        return self, "Guess 1 to 9."

    def step(self, action: Action) -> tuple[Env, Delta]:
        self.turn += 1
        found = re.findall(r"\d+", action)
        guess = int(found[-1][:9]) if found else None
        self.alive = guess != self.target and self.turn < 3
        self.reward = max(self.reward, 0.0 if guess is None else 1 / (1 + abs(guess - self.target)))
        return self, "no number" if guess is None else "too low" if guess < self.target else "too high"


class Trained:
    """Record of a rollout function's results, and of a reward function's rewards for them."""

    def __init__(self, rollout_func, reward_func):
        self.columns, self.rewards, self.warnings = [], [], []
        self._rollout, self._reward = rollout_func, reward_func

    def rollout_func(self, prompts, trainer):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            columns = self._rollout(prompts, trainer)
        self.warnings += [str(warning.message) for warning in seen]
        kept = {name: column for name, column in columns.items() if name not in ("episode", "outcomes")}
        if "episode" in columns:
            kept["task"] = [episode.task.to_json() for episode in columns["episode"]]
            kept["return"] = [episode.episode_return for episode in columns["episode"]]
        self.columns.append(kept)
        return columns

    def reward_func(self, **given):
        rewards = self._reward(**given)
        self.rewards.append([float("nan") if reward is None else float(reward) for reward in rewards])
        return rewards


def model_that_stops(tokenizer):
    """Return a tiny model that likes digits and to end its turn, so that not all of its actions are cut off."""
    model = tiny_model(tokenizer)
    bias = torch.zeros(model.lm_head.out_features)
    bias[tokenizer.convert_tokens_to_ids(list("0123456789"))] = 2.0
    bias[tokenizer.eos_token_id] = 3.5
    model.lm_head.bias = torch.nn.Parameter(bias, requires_grad=False)
    return model


def settings(folder, **changes):
    return GRPOConfig(
        **{
            "output_dir": str(folder / "out"),
            "max_steps": 2,
            "per_device_train_batch_size": 8,
            "num_generations": 4,
            "max_completion_length": 200,
            "logging_steps": 1,
            "use_cpu": True,
            "bf16": False,
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
            **changes,
        }
    )


def go(folder, rollout_func, reward_func, dataset, *, tokenizer=None, **changes):
    tokenizer = tokenizer or tiny_tokenizer()
    kept = Trained(rollout_func, reward_func)
    trainer = GRPOTrainer(
        model=model_that_stops(tokenizer),
        processing_class=tokenizer,
        args=settings(folder, **changes),
        train_dataset=dataset,
        rollout_func=kept.rollout_func,
        reward_funcs=kept.reward_func,
    )
    trainer.train()
    return {
        "columns": [told(columns) for columns in kept.columns],
        "rewards": kept.rewards,
        "warnings": kept.warnings,
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
    }


def told(columns):
    """Return the columns as JSON values, with what the tests read of the episodes."""
    episodes = columns.get("episode") or []
    own = {"task": [one.task.to_json() for one in episodes], "episode_return": [one.paid for one in episodes]}
    return {**(own if episodes else {}), **{name: value for name, value in columns.items() if name != "episode"}}


def fail_apply_chat_template(*args, **kwargs):
    raise RuntimeError("GRPO must not use apply_chat_template")


def trl_env(folder):
    """Train like trl-env's example, which passes no chat template to the trainer."""
    tokenizer = TransformerTokenizer(tiny_tokenizer())
    tokenizer.processing_class.apply_chat_template = fail_apply_chat_template
    marks = Type1ProcessorConfig("<|system|>", "<|end|>", "<|user|>", "<|end|><|assistant|>", "</think>", "<|end|>")
    data = Dataset.from_dict({"prompt": [str(random.randint(1, 9)) for _ in range(40)]})
    return go(
        folder,
        make_rollout_func(
            processor=Type1Processor(marks),
            tokenizer=tokenizer,
            env_factory=GuessEnv,
            max_tokens_per_turn=3,
            system_prompt="At most 3 tokens a turn.",
            max_conversation_length=120,
        ),
        make_reward_func(),
        data,
        tokenizer=tokenizer.processing_class,
    )


def legacy(folder):
    """Train with the unchanged function of TRL's OpenEnv page and a local Echo client."""

    class EchoAction:
        def __init__(self, message):
            self.message = message

    class Client:
        def reset(self):
            self.steps = 0

        def step(self, action):
            self.steps += 1
            return type("Result", (), {"reward": 0.1 * len(action.message)})

    client = Client()
    seen = []
    port = free_port()

    def rollout_func(prompts, args, processing_class):
        seen.append(list(prompts))
        # 1. Generate completions via vLLM inference server (running on port 8000)
        payload = {
            "prompts": prompts,
            "n": args.num_generations,
            "temperature": args.temperature,
            "max_tokens": args.max_completion_length,
        }
        response = requests.post(f"http://0.0.0.0:{port}/generate/", json=payload, timeout=60)
        result = response.json()
        completions_text = processing_class.batch_decode(result["completion_ids"], skip_special_tokens=True)
        # 2. Step through the environment to get rewards
        client.reset()
        env_rewards = []
        for msg in completions_text:
            env_result = client.step(EchoAction(message=msg))
            env_rewards.append(env_result.reward)
        # 3. Add environment rewards as extra field
        result["env_reward"] = env_rewards
        return result

    def reward_from_env(completions, **kwargs):
        """Extract environment rewards passed via rollout_func kwargs."""
        env_rewards = kwargs.get("env_reward", [])
        return [float(reward) for reward in env_rewards] if env_rewards else [0.0] * len(completions)

    dataset = Dataset.from_dict(
        {"prompt": ["You are an AI that interacts with an *Echo* environment. Word to echo:"] * 64}
    )
    report = go(
        folder,
        legacy_rollout_func(rollout_func, generate_url=f"http://0.0.0.0:{port}/generate/"),
        reward_from_env,
        dataset,
        max_completion_length=12,
    )
    return {**report, "asked": seen}


def real_trl_env(folder):
    """Compare trl-env's own rollout with ours, on our environments and the same decoder."""
    package = Path(os.environ["TRL_ENV"]) / "trl_env"
    for name in ("environment", "decoder", "processor", "tokenizer", "rollout"):
        source = (package / f"{name}.py").read_text()
        # Statements of Python 3.12, for every Python that this library runs on.
        source = re.sub(r"^type (\w+) = ", r"\1 = ", source, flags=re.MULTILINE)
        module = types.ModuleType(f"trl_env.{name}")
        module.__package__ = "trl_env"
        sys.modules.setdefault("trl_env", types.ModuleType("trl_env")).__path__ = [str(package)]
        sys.modules[module.__name__] = module
        exec(compile(source, str(package / f"{name}.py"), "exec"), module.__dict__)
    theirs = sys.modules["trl_env.rollout"]
    tokenizer = TransformerTokenizer(tiny_tokenizer())
    preset = [
        {
            field: value
            for field, value in vars(module.qwen3_instruct_processor.config).items()
            if field != "after_answer"
        }
        for module in (ours, sys.modules["trl_env.processor"])
    ]
    given: dict[str, Any] = {"system_prompt": "Play.", "max_conversation_length": 1000}
    marks = Type1ProcessorConfig("<|system|>", "<|end|>", "<|user|>", "<|end|><|assistant|>", "</think>", "<|end|>")
    decoder, processor = Bisecting(tokenizer), Type1Processor(marks)
    other = theirs.rollout(
        processor=processor, tokenizer=tokenizer, decoder=decoder, env=GuessEnv(), seed="5",
        conversation_logger=lambda role, content: None, **given,
    )  # fmt: skip
    [mine] = ours.batch_rollout(decoder, processor, GuessEnv, seed_list=["5"], **given)
    names = ("initial_length", "conversation", "env_mask", "logprobs", "reward")
    return {"preset": preset, "played": [{name: getattr(one, name) for name in names} for one in (other, mine)]}


class Bisecting(ours.TransformerModel):
    """Decoder of trl-env, and model of ours, that guesses without one."""

    def __init__(self, tokenizer):
        self.tokenizer, self.max_new_tokens = tokenizer, 9

    def generate(self, input_ids):
        low, high = 1, 9
        for answer in re.findall(r"too (low|high)", self.tokenizer.decode(input_ids)):
            middle = (low + high) // 2
            low, high = (middle + 1, high) if answer == "low" else (low, middle - 1)
        ids = self.tokenizer.encode(f"{(low + high) // 2}<|end|>")
        return ids, [-0.5] * len(ids)

    def engine(self, chat):
        def answer(request):
            return Completion(request.id, *self.generate(request.prompt_ids))

        return ScriptedEngine(answer)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    reports = {}
    for name in sys.argv[2:]:
        (target / name).mkdir()
        with contextlib.redirect_stdout(sys.stderr):
            reports[name] = globals()[name](target / name)
    (target / "report.json").write_text(json.dumps(reports))
