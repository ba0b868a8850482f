# mypy: ignore-errors
"""trl-env: its own ``make_rollout_func`` with its own vLLM decoder, one episode after the other."""

import importlib.util
import re
import sys
from copy import copy
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import SimpleNamespace

from systems import first_message
from systems.trainers import call_rollout_func, make_trainer


class _OlderPython(SourceFileLoader):
    def get_data(self, path):
        source = super().get_data(path)
        return re.sub(rb"^type (\w+) = ", rb"\1 = ", source, flags=re.MULTILINE) if path.endswith(".py") else source

    def path_stats(self, path):
        raise OSError("what is compiled of the original source is of no use")


def package():
    spec = importlib.util.find_spec("trl_env")
    if spec is None:
        raise ModuleNotFoundError("trl-env is not installed: make .venv/.peers/trl-env")
    folder = Path(spec.submodule_search_locations[0])
    for name in ("environment", "decoder", "processor", "tokenizer", "decoder_vllm", "rollout"):
        full = f"trl_env.{name}"
        if full not in sys.modules:
            loader = _OlderPython(full, str(folder / f"{name}.py"))
            module = importlib.util.module_from_spec(importlib.util.spec_from_loader(full, loader))
            sys.modules[full] = module
            loader.exec_module(module)
    return SimpleNamespace(**{name: sys.modules[f"trl_env.{name}"] for name in ("processor", "tokenizer", "rollout")})


class GameEnv:
    """The game in trl-env's protocol; its seed is the prompt."""

    def __init__(self, game, turns):
        self._env = game.make()
        self.reward, self.alive, self.turns = 0.0, True, turns

    def reset(self, seed):
        observation, _ = self._env.reset(seed=int(seed))
        self.reward, self.alive = 0.0, True
        self.turns.append(0)
        return self, first_message(self._env, observation)

    def step(self, action):
        observation, reward, terminated, truncated, _ = self._env.step(action)
        self.reward += float(reward)
        self.alive = not (terminated or truncated)
        self.turns[-1] += 1
        return self, observation


class OneEngine:
    """trl-env's factory with the shared engine."""

    def __init__(self, trainer, game):
        from trl_env.decoder_vllm import VLLMDecoder

        vllm = copy(trainer.vllm_generation)  # everything that samples is TRL's own
        vllm.max_completion_length = game.tokens_per_turn
        vllm.generation_kwargs = {  # what trl_env.decoder_vllm passes
            "stop_token_ids": [trainer.processing_class.eos_token_id],
            "skip_special_tokens": False,
            "include_stop_str_in_output": True,
        }
        self._decoder = VLLMDecoder(vllm=vllm)

    def make_decoder(self, trainer):
        return self._decoder


def processor_of(theirs, tokenizer):
    """Return the Qwen3 preset for such tokenizers; else the same class with the template's own marks."""
    if "<|im_start|>" in tokenizer.get_vocab():
        return theirs.processor.qwen3_processor
    marks = {"prefix_system": "", "suffix_system": "", "prefix_user": "<|user|>", "begin_answer": "</think>"}
    config = theirs.processor.Type1ProcessorConfig(**marks, suffix_user="<|end|><|assistant|>", end_answer="<|end|>")
    return theirs.processor.Type1Processor(config)


def play(game, generator):
    theirs, trainer, turns = package(), make_trainer(game, generator), []
    rollout_func = theirs.rollout.make_rollout_func(
        processor=processor_of(theirs, generator.tokenizer),
        tokenizer=theirs.tokenizer.TransformerTokenizer(generator.tokenizer),
        decoder_factory=OneEngine(trainer, game),
        env_factory=lambda: GameEnv(game, turns),
        system_prompt="",
        max_conversation_length=game.tokens,
    )
    prompts = [str(seed) for seed in game.seeds]
    return call_rollout_func(
        game, generator, rollout_func, rewards="reward", turns=turns, prompts=prompts, trainer=trainer
    )
