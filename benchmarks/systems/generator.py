"""Sampling for all systems: one tiny model, one engine, and a recorder at the engine."""

import json
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from support import vllm_cpu

from systems import Call, Counts, Game
from systems.game import make, seed_of, turns_of

MODEL = Path(__file__).parents[2] / ".venv" / ".bench" / "model"
CONTEXT = 2048
GAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "GuessNumber": ("TrlEnv/GuessNumber-v0", {"high": 1000, "turns": 64}),
    "Wordle": ("TrlEnv/Wordle-v0", {"guesses": 64, "turns": 64}),
}
"""Games that allow more turns than ``MOST_TURNS``, so that the seed decides the length (unless the game is won)."""
_WORDS = ("crane", "slope", "night", "audio", "bluff", "wordy")
_STEPS = 200
_SHARPER = 1.3  # factor of the logits, so that errors are rare in spite of the short training


def game_of(name: str, *, episodes: int, latency_s: float, group_size: int = 4, first: int = 0) -> Game:
    env_id, kwargs = GAMES[name]
    seeds = tuple(first + index // group_size for index in range(episodes))
    return Game(env_id, kwargs, seeds, group_size, latency_s)


class Recorder:
    """Proxy of a ``vllm.LLM``'s engine that records its requests and samples."""

    def __init__(self, llm: Any) -> None:
        self._outputs: list[Any] = []
        self._steps = 0
        self._step = llm.llm_engine.step
        llm.llm_engine.step = self._noting

    def _noting(self) -> Any:
        self._steps += 1
        outputs = self._step()
        # A copy: the prompt is the caller's own list, and trl-env appends to it later.
        self._outputs += [(output, list(output.prompt_token_ids)) for output in outputs if output.finished]
        return outputs

    def begin(self) -> None:
        self._outputs, self._steps = [], 0

    def fill(self, counts: Counts) -> None:
        counts.steps = self._steps
        for output, prompt_ids in self._outputs:
            sampled = output.outputs[0]
            ids = list(sampled.token_ids)
            logprobs = sampled.logprobs and [
                entry[id_].logprob for id_, entry in zip(ids, sampled.logprobs, strict=True)
            ]
            counts.calls.append(Call(prompt_ids, ids, logprobs or None))
            counts.sampled += len(ids)


class Generator:
    """The model, and the ways to sample from it, each started on first use."""

    def __init__(self, max_num_seqs: int = 256) -> None:
        self.max_num_seqs = max_num_seqs
        self._recorder: Any = None

    @cached_property
    def folder(self) -> Path:
        return saved_model()

    @cached_property
    def tokenizer(self) -> Any:
        return self.new_tokenizer()

    def new_tokenizer(self) -> Any:
        """Return a tokenizer of its own for a system that changes it."""
        from gym_trl.testing import tiny_tokenizer

        return tiny_tokenizer()

    @cached_property
    def llm(self) -> Any:
        """A ``vllm.LLM`` of this process, as TRL makes it, on a CPU."""
        vllm_cpu.prepare()
        from vllm import LLM

        llm = LLM(
            model=str(self.folder),
            max_model_len=CONTEXT,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=4096,
            logprobs_mode="processed_logprobs",
            **vllm_cpu.ENGINE,
        )
        self._recorder = Recorder(llm)
        return llm

    @contextmanager
    def measured(self) -> Iterator[Counts]:
        """Record the calls in the ``with`` block, from an empty prefix cache."""
        self.llm.reset_prefix_cache()
        counts = Counts()
        self._recorder.begin()
        began = time.perf_counter()
        try:
            yield counts
        finally:
            counts.seconds = time.perf_counter() - began
            self._recorder.fill(counts)

    def seed_of(self, prompt_ids: list[int]) -> int | None:
        """Return the seed of the game in a prompt, from its text."""
        return seed_of(self.tokenizer.decode(prompt_ids))


def saved_model(folder: Path = MODEL) -> Path:
    """Return the folder of the tiny model after seconds of training on the format of responses; created once.

    An untrained model hardly ever ends a turn or calls a tool. This one learns from transcripts to write "Hmmm" of
    random length, then a box with a random number or word as the action, and "Done." when the game is over.
    """
    if not (folder / "learnt.json").exists():
        from gym_trl.testing import tiny_tokenizer

        learn(folder, tiny_tokenizer(), transcript)
    return folder


def learn(folder: Path, tokenizer: Any, transcript: Callable[..., tuple[list[int], list[int]]]) -> None:
    """Train a tiny model to continue as ``transcript(chat, tokenizer, rng)`` does, and save both."""
    import torch

    from gym_trl.chat import Chat
    from gym_trl.testing import tiny_model

    model, chat, rng = tiny_model(tokenizer, head_width=32), Chat(tokenizer), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _STEPS)
    loss = torch.tensor(math.nan)
    for step in range(_STEPS):
        rows = [transcript(chat, tokenizer, rng) for _ in range(8)]
        if step % 8:  # the ends of long games add little to their beginnings, and are slow to train on
            rows = [(ids[:320], mask[:320]) for ids, mask in rows]
        length = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([[*ids, *[tokenizer.pad_token_id] * (length - len(ids))] for ids, _ in rows])
        said = torch.tensor([[*mask, *[0] * (length - len(mask))] for _, mask in rows])
        loss = model(input_ids=ids, labels=ids.masked_fill(said == 0, -100)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"the tiny model learns how to answer: {step} of {_STEPS}, loss {loss.item():.3f}", flush=True)
    with torch.no_grad():
        model.model.norm.weight *= _SHARPER
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "learnt.json").write_text(json.dumps({"steps": _STEPS, "loss": loss.item()}), encoding="utf-8")


def _answer(rng: random.Random) -> str:
    action = str(rng.randint(100, 999)) if rng.random() < 0.5 else rng.choice(_WORDS)
    return f"H{'m' * min(20, int(rng.expovariate(1 / 6)))} " + rf"\boxed{{{action}}}"


def transcript(
    chat: Any,
    tokenizer: Any,
    rng: random.Random,
    *,
    answer: Callable[[random.Random], str] = _answer,
    game: Game | None = None,
    turns: int | None = None,
) -> tuple[list[int], list[int]]:
    """Return a game as this model is to play it: its ids, and a mask of the model's tokens."""
    from systems import first_message

    env = game.make() if game else make(*GAMES[rng.choice(list(GAMES))], 0.0)
    seed = rng.randrange(2**16)
    observation, _ = env.reset(seed=seed)
    # The rules are long and do not help with the format: one prompt in four has them.
    opening = first_message(env, observation) if rng.random() < 0.25 else observation
    messages = [{"role": "user", "content": opening}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    mask = [0] * len(ids)
    over = False
    for turn in range((turns or turns_of(seed)) + 1):
        if turn:
            heard = chat.reply(observation + (" The game is over." if over else ""), closed=True)
            ids, mask = [*ids, *heard], [*mask, *[0] * len(heard)]
        words = "Done." if over else answer(rng)
        said = [*tokenizer.encode(words, add_special_tokens=False), tokenizer.eos_token_id]
        ids, mask = [*ids, *said], [*mask, *[1] * len(said)]
        if over:
            break
        observation, _, terminated, truncated, _ = env.step(words)
        over = terminated or truncated
    return ids, mask
