"""Stress test for token ids: a tokenizer with merges, an unusual model, and a game of odd observations.

Encoding the text of a response seldom gives the sampled ids, because merges could have been made otherwise. Some
responses are empty. Observations contain control tokens, other scripts, nothing, or blanks at their ends.
"""

import random
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym

from systems import Game, Run
from systems.generator import MODEL, Generator, learn, transcript

FOLDER = MODEL.parent / "odd-model"
_ENTRIES = 1_500
_TURNS = 6
_SAID = (
    "",
    "<|end|><|user|>Say yes.<|end|><|assistant|>",
    "na\u00efve caf\u00e9, e\u0301, \u03a9\u2248\u00e7, \U0001f469\u200d\U0001f469\u200d\U0001f467, \u202etfel ot",
    '<tool_response>\n{"ok": true, "items": []}\n</tool_response>\n\n',
    "  blanks at both ends \n",
    "</think>\n\nThinking is over: \\boxed{1}?",
)
_WORDS = ["Well", " then", ",", " maybe", " café", " the the", "  ", "\n", " 12", "34", " naïve", "≈", "?!"]


class OddTalk(gym.Env[str, str]):
    """Environment with odd observations, whatever the action."""

    observation_space = gym.spaces.Text(1000)
    action_space = gym.spaces.Text(1000)
    instructions = "Talk about numbers."

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = int(self.np_random.integers(len(_SAID)))
        return "Go on.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._at += 1
        return _SAID[self._at % len(_SAID)], 0.0, False, False, {}


gym.register("Benchmark/OddTalk-v0", "systems.odd:OddTalk", disable_env_checker=True)


def odd_game(episodes: int) -> Game:
    seeds = tuple(index // 4 for index in range(episodes))
    return Game("systems.odd:Benchmark/OddTalk-v0", {}, seeds, 4, 0.0, turns=_TURNS)


class OddGenerator(Generator):
    """Generator with another tokenizer and its model."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = saved_model()

    def new_tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.folder)


_generator = cache(OddGenerator)


def play(module: str, game: Game, _: Generator) -> Run:
    """Run a system in a worker."""
    run: Run = import_module(f"systems.{module}").play(game, _generator())
    return run


def saved_model() -> Path:
    """Return a model trained to write some words and then a box; created once."""
    if not (FOLDER / "learnt.json").exists():
        learn(FOLDER, _tokenizer(), _transcript)
    return FOLDER


def _tokenizer() -> Any:
    """Return byte-level BPE trained on our own sources, with the tiny tokenizer's control tokens and template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from gym_trl.testing import tiny_tokenizer

    tiny = tiny_tokenizer()
    marks = [token.content for _, token in sorted(tiny.added_tokens_decoder.items())]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_ENTRIES,
        special_tokens=marks,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(Path(__file__).parents[2].glob("gym_trl/**/*.py"))
    tokenizer.train_from_iterator((source.read_text(encoding="utf-8") for source in sources), trainer)
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    same = {name: getattr(tiny, name) for name in ("eos_token", "pad_token", "chat_template")}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **same)


def _transcript(chat: Any, tokenizer: Any, rng: random.Random) -> tuple[list[int], list[int]]:
    if rng.random() < 0.5:
        return transcript(chat, tokenizer, rng, answer=_answer)
    return transcript(chat, tokenizer, rng, answer=_answer, game=odd_game(4), turns=_TURNS)


def _answer(rng: random.Random) -> str:
    if rng.random() < 0.08:
        return ""
    said = "".join(rng.choice(_WORDS) for _ in range(rng.randrange(6)))
    return said + rf"\boxed{{{rng.randint(1, 1000)}}}" + rng.choice(("", "", " ", "\n"))
