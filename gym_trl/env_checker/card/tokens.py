"""Tokens of an episode, as a tokenizer counts them."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gym_trl.env_checker.play import PlayedEpisode

CHARACTERS = 4
"""Characters per token of English text, about, where there is no tokenizer."""


class Tokens(NamedTuple):
    """Mean numbers of tokens per episode."""

    tokenizer: str
    prompt: float
    """Instructions and first observation."""
    observations: float
    """Observations after the first one."""
    actions: float
    """Actions, marked as the instructions ask for them; reasoning of a model comes on top."""
    longest: int
    """Tokens of the longest episode altogether."""
    of: str
    """Policy whose episodes were counted."""


def count_tokens(
    games: Sequence[PlayedEpisode],
    *,
    instructions: str,
    marked: Callable[[str], str],
    of: str,
    tokenizer: Any = None,
    name: str = "",
) -> Tokens | None:
    """Return the mean numbers of tokens of episodes; ``None`` without episodes.

    >>> from gym_trl.episode import Episode
    >>> from gym_trl.types import Task
    >>> seen = [(None, "Say ox.", 0, False, False, None, None), ("ox", "Yes.", 1, True, False, 1, 1)]
    >>> game = PlayedEpisode(Episode(Task("Echo", 0)), seen)
    >>> count_tokens([game], instructions="Repeat words.", marked="<action>{}</action>".format, of="solver")[1:]
    (6.0, 1.0, 5.0, 12, 'solver')

    Args:
        games: Episodes.
        instructions: Instructions, with the action format.
        marked: Marks an action as a response has to.
        of: Name of the policy that played.
        tokenizer: Tokenizer of Transformers. Default: none, characters are divided by 4.
        name: Name of the tokenizer.
    """
    games = [game for game in games if game.error is None and game.seen]
    if not games:
        return None
    known: dict[str, int] = {}

    def size(text: str) -> int:
        if text not in known:
            known[text] = (
                math.ceil(len(text) / CHARACTERS)
                if tokenizer is None
                else len(tokenizer.encode(text, add_special_tokens=False))
            )
        return known[text]

    counted = [
        (
            size(f"{instructions}\n\n{game.observations[0]}"),
            sum(map(size, game.observations[1:])),
            sum(size(marked(action)) for action in game.actions),
        )
        for game in games
    ]
    prompt, observations, actions = (round(statistics.fmean(column), 1) for column in zip(*counted, strict=True))
    if tokenizer is None:
        name = f"none: one token is about {CHARACTERS} characters"
    return Tokens(name, prompt, observations, actions, max(map(sum, counted)), of)
