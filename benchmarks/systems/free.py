"""Engine that responds at once with a constant, so that the time of a rollout is the system's own.

It replaces the part of vLLM that the systems use, so that each pays for its own requests, sampling parameters and
results, and for tokenizing if its prompts are text, as in ``LLM.generate``.
"""

import gc
import json
import string
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from systems import Counts, Game

_CALL = '{"name": "act", "arguments": {"action": "\\u005cboxed{500000}"}}'
ANSWER = f"\\boxed{{500000}}\n<tool_call>\n{_CALL}\n</tool_call><|im_end|>"
"""A response with an action in a box, and the same action as a tool call for the systems that play with tools only."""
_DONE = "Done.<|im_end|>"
_LENGTH = 10**7
_FOLDERS = Path(__file__).parents[2] / ".venv" / ".bench"
_LOGPROB = -0.5


def game_of(turns: int) -> Game:
    """Return two episodes of so many turns, of a game that is never won."""
    numbers = {"low": 1, "high": 10**9, "turns": 10**6}
    return Game("TrlEnv/GuessNumber-v0", numbers, (0, 0), 2, 0.0, tokens_per_turn=64, tokens=10**6, turns=turns)


class FreeGenerator:
    """Replacement of ``systems.generator.Generator``; its seconds are processor seconds."""

    def __init__(self, vocabulary: int, *, calls: int | None = None) -> None:
        self.vocabulary, self.folder = vocabulary, saved_model(vocabulary)
        self.tokenizer = self.new_tokenizer()
        self.llm = FreeLLM(self.tokenizer, calls)

    def new_tokenizer(self) -> Any:
        return qwen3_tokenizer(self.vocabulary)

    def seed_of(self, prompt_ids: list[int]) -> int | None:
        return None

    @contextmanager
    def measured(self) -> Iterator[Counts]:
        self.llm.calls = 0
        gc.collect()  # what trainers of earlier rounds left
        counts, began = Counts(), time.process_time()
        yield counts
        counts.seconds = time.process_time() - began


class FreeLLM:
    """Part of ``vllm.LLM`` that the systems use; the response is "Done." after ``most_calls`` calls of ``generate``."""

    def __init__(self, tokenizer: Any, most_calls: int | None) -> None:
        self._tokenizer, self._most_calls, self.calls = tokenizer, most_calls, 0
        self.answer, self._done = (_sampled(tokenizer, text) for text in (ANSWER, _DONE))
        self.llm_engine = FreeEngine(self.answer, _sampled(tokenizer, ANSWER, flat=True))

    def generate(self, prompts: list[Any], sampling_params: Any = None, *, use_tqdm: bool = True) -> list[Any]:
        self.calls += 1
        sampled = self._done if self._most_calls is not None and self.calls > self._most_calls else self.answer
        return [_output("", self._ids(prompt), sampled) for prompt in prompts]

    def _ids(self, prompt: Any) -> list[int]:
        ids: list[int] = self._tokenizer(prompt).input_ids if isinstance(prompt, str) else prompt["prompt_token_ids"]
        return ids

    def reset_prefix_cache(self) -> None:
        """Do nothing: there is no cache."""


class FreeEngine:
    """Part of ``LLMEngine`` that the systems use."""

    def __init__(self, answer: Any, flat: Any) -> None:
        self._answers = {False: answer, True: flat}
        self._waiting: list[tuple[str, list[int], bool]] = []
        self.model_config = SimpleNamespace(max_model_len=_LENGTH, logprobs_mode="processed_logprobs")

    def is_sleeping(self) -> bool:
        return False

    def add_request(self, request_id: str, prompt: Any, params: Any) -> None:
        self._waiting.append((request_id, prompt["prompt_token_ids"], params.flat_logprobs))

    def abort_request(self, request_ids: list[str]) -> None:
        self._waiting = [waiting for waiting in self._waiting if waiting[0] not in request_ids]

    def step(self) -> list[Any]:
        waiting, self._waiting = self._waiting, []
        return [_output(id_, prompt, self._answers[flat]) for id_, prompt, flat in waiting]


def _output(request_id: str, prompt_ids: list[int], sampled: Any) -> Any:
    return SimpleNamespace(request_id=request_id, prompt_token_ids=prompt_ids, outputs=[sampled], finished=True)


def _sampled(tokenizer: Any, text: str, *, flat: bool = False) -> Any:
    from vllm.logprobs import FlatLogprobs, Logprob

    ids = tokenizer.encode(text, add_special_tokens=False)
    logprobs = FlatLogprobs() if flat else []
    logprobs.extend({id_: Logprob(_LOGPROB, rank=1, decoded_token="")} for id_ in ids)
    said = text.removesuffix("<|im_end|>")
    return SimpleNamespace(index=0, token_ids=ids, logprobs=logprobs, text=said, finish_reason="stop")


@cache
def _vocabulary(size: int) -> Any:
    """Return byte-level BPE with so many entries: all bytes, printable pairs, and pairs with a third letter."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    marks = [AddedToken(mark, special=True) for mark in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    pairs = [(f"<{name}>", f"</{name}>") for name in ("think", "tool_call", "tool_response")]
    words = [AddedToken(mark, special=False) for pair in pairs for mark in pair]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = [chr(code) for code in range(33, 127)]
    merges = [(first, second) for first in printable for second in printable]
    merges += [(first + second, third) for first, second in merges for third in string.ascii_lowercase]
    merges = merges[: size - len(alphabet) - len(marks) - len(words)]
    entries = dict.fromkeys([*alphabet, *(first + second for first, second in merges)])
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(entries)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(marks)
    tokenizer.add_tokens(words)
    return tokenizer


def qwen3_tokenizer(size: int) -> Any:
    """Return a tokenizer of that size with Qwen3's chat template, as TRL ships it."""
    from transformers import PreTrainedTokenizerFast
    from trl.chat_template_utils import qwen3_chat_template

    marks = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": qwen3_chat_template}
    return PreTrainedTokenizerFast(tokenizer_object=_vocabulary(size), clean_up_tokenization_spaces=False, **marks)


@cache
def saved_model(vocabulary: int) -> Path:
    """Return a folder with a never-run model and the tokenizer, for trainers and renderers; created once."""
    from gym_trl.testing import tiny_model

    folder, tokenizer = _FOLDERS / f"free-{vocabulary}", qwen3_tokenizer(vocabulary)
    settings = folder / "tokenizer_config.json"
    if settings.exists() and "unk_token" in json.loads(settings.read_text(encoding="utf-8")):
        return folder
    model = tiny_model(tokenizer, width=32, layers=1)
    model.config.max_position_embeddings = _LENGTH
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # Qwen's own says so too; left out, it would be <|endoftext|>.
    written = json.loads(settings.read_text(encoding="utf-8")) | {"unk_token": None}
    settings.write_text(json.dumps(written), encoding="utf-8")
    return folder


def play(module: str, turns: int, vocabulary: int, rounds: int, _: Any) -> list[float]:
    """Return processor microseconds per turn, of the system and the game, in each of some rounds."""
    from importlib import import_module

    game = game_of(turns)
    calls = turns if module == "environment_factory" else None
    generator = FreeGenerator(vocabulary, calls=calls)
    system, spent = import_module(f"systems.{module}"), []
    for _ in range(rounds):
        run = system.play(game, generator)
        played = [episode.turns for episode in run.played]
        if played != [turns] * len(game.seeds):
            raise RuntimeError(f"{module} played {played} turns of {turns}")
        spent.append(run.counts.seconds / turns / len(game.seeds) * 1e6)
    return spent


def game_alone(turns: int, rounds: int, _: Any) -> list[float]:
    game, spent = game_of(turns), []
    for _ in range(rounds):
        began = time.process_time()
        env = game.make()
        env.reset(seed=0)
        for _ in range(turns):
            env.step(ANSWER)
        spent.append((time.process_time() - began) / turns * 1e6)
    return spent
