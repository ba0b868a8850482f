"""Lower bounds for every system with this engine: the same tokens in one batch, and the longest episode alone."""

import time
from itertools import groupby
from typing import Any

from systems import Counts, Game, Played
from systems.game import delays
from systems.generator import Generator

_STEP_S = 0.002
"""Seconds of an engine step with one request, to estimate which episode takes longest."""


def generation(played: list[Played], generator: Generator) -> Counts:
    """Generate the sampled numbers of tokens of all episodes in one call."""
    llm, lengths = generator.llm, [sum(episode.mask or []) for episode in played]
    prompts = [{"prompt_token_ids": episode.prompt_ids} for episode in played]
    with generator.measured() as counts:
        llm.generate(prompts, [exactly(length) for length in lengths], use_tqdm=False)
    return counts


def longest_alone(game: Game, played: list[Played], generator: Generator) -> Counts:
    """Play the turns of the longest episode in sequence, with the same tokens and waits."""

    def seconds(row: int) -> float:
        episode = played[row]
        return sum(delays(game.seeds[row], game.latency_s)[: episode.turns]) + _STEP_S * sum(episode.mask or [])

    row = max(range(len(played)), key=seconds)
    waits, llm = delays(game.seeds[row], game.latency_s), generator.llm
    with generator.measured() as counts:
        for wait, (prompt, length) in zip(waits, _turns(played[row]), strict=False):
            llm.generate([{"prompt_token_ids": prompt}], exactly(length), use_tqdm=False)
            time.sleep(wait)
    return counts


def _turns(episode: Played) -> list[tuple[list[int], int]]:
    """Return the prompt before each turn, and the number of tokens sampled in it."""
    turns, at = [], 0
    for sampled, ids in groupby(episode.mask or []):
        length = len(list(ids))
        if sampled:
            turns.append((episode.prompt_ids + episode.completion_ids[:at], length))
        at += length
    return turns


def exactly(length: int) -> Any:
    """Return the parameters with which vLLM samples so many tokens."""
    from vllm import SamplingParams

    return SamplingParams(max_tokens=length, ignore_eos=True, logprobs=0, detokenize=False)
