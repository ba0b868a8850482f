"""Actions that blind policies are made of: of the action space, of lists, in texts, and of episodes that are played."""

import math
import random
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from gymnasium import spaces

from gym_trl.evaluation.blind_play import Actions, Arena, PolicyEpisode, PolicyMaker, Spent
from gym_trl.evaluation.spread import numbers_within, spread
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.random_play import (
    Actor,
    own_random_policy,
    played_space,
    plays_characters,
    random_play,
    solver_play,
)
from gym_trl.seeding import derive_seed
from gym_trl.text.samples import holds_numbers, ranges_in
from gym_trl.text.spaces import write
from gym_trl.wrappers.base import attribute_of, instructions_of

MANY = 64
"""Number of offered actions from which on only the best ones are in the pool."""
_POOL = 200  # maximum number of actions that sequences are made of
_MINED = 64  # of these, maximum number that is read from texts
_SPREAD = 1_000  # maximum number of actions of a space, or numbers of a range, that are offered
_FEW = 16  # number of mined texts that are kept where all are answered alike
_TRIALS = 3  # maximum number of episodes in which a mined text is tried
_SURVEYED = 32  # training episodes that are played to collect actions
_OFFERED_SHARE = 0.23  # of the steps, maximum that is used until offered actions were tried
_EXAMPLES = ("action_examples", "example_actions", "examples")
_GARBAGE = "xyzzy"


class Pool:
    """Actions that sequences are made of, the most promising first, and the episodes from which they were learned.

    Args:
        arena: Environment and budget.
        longest: Maximum length of the sequences. Of 1, no solver is played: random play finds enough single actions.
    """

    def __init__(self, arena: Arena, longest: int) -> None:
        self.arena = arena
        self.solvable = attribute_of(arena.env, "solver") is not None
        self.actions: list[str] = []
        self.weights: list[float] = []
        """Weights with which actions are drawn."""
        self.episodes: list[PolicyEpisode] = []
        self.offered: list[str] = []
        """Actions of the space, or numbers of the ranges in texts."""
        self._with_solver = self.solvable and longest > 1
        self._tries = 6 if longest > 1 else 2  # episodes for each offered action; of single ones all are to be tried
        self._mined: list[str] = []
        self._texts: list[str] = []
        self._played: set[str] = set()  # actions that were listed, understood or valid

    @property
    def mean_turns(self) -> float:
        """Mean number of turns of the episodes."""
        turns = [one.outcome.turns if one.outcome else one.turns for one in self.episodes]
        return statistics.fmean(turns or [1])

    def explorer(self, seed: int) -> PolicyMaker:
        """Return random play; where it would be any characters, random actions of the pool."""
        return partial(_exploring, seed, self.actions)

    def draw(self, rng: random.Random, length: int) -> Actions:
        """Return random actions, by their weights."""
        return tuple(rng.choices(self.actions, self.weights, k=length))

    def survey(self) -> None:
        """Play training episodes to collect the actions and find out which of them win."""
        env, observations = self.arena.env, self._first_observations()
        self._texts = [instructions_of(env), *observations]
        if self.arena.converter is None:
            self.actions = self._mined = self._understood(list(islice(mined(env, observations), _MINED)))
        for number in range(_SURVEYED):
            seed = self.arena.training(number)
            policies = [self.explorer(derive_seed(seed, "blind")), *([solver_play] if self._with_solver else [])]
            for policy in policies:
                if (episode := self.arena.follow(policy, seed)) is not None:
                    self.episodes.append(episode)

    def offer(self) -> None:
        """Collect as many actions of the space as can be tried, or the numbers that the texts of free text name."""
        budget = self.arena.steps * _OFFERED_SHARE - self.arena.used
        most = min(_SPREAD, max(MANY, int(budget / (1 + self.mean_turns) / self._tries)))
        space, converter = played_space(self.arena.env), self.arena.converter
        if converter is not None:
            converted: Any = converter.converted_space
            actions = (write(converted, one, converter.names) for one in spread(converted, most, self._texts))
            self.offered = list(dict.fromkeys(actions))
        elif isinstance(space, spaces.Text):
            self.offered = spread(space, most if holds_numbers(space) else min(most, _POOL), self._texts)
        else:
            numbers = list(map(str, numbers_within(ranges_in(self._texts), most)))
            some = numbers[:: max(1, len(numbers) // 4)]
            self.offered = numbers if set(some) & set(self._understood(some)) else []

    def settle(self) -> None:
        """Order the actions by how often they were played and listed."""
        mentions = self._mentions()
        self._played = {action for action, number in mentions.items() if number} | {*self._mined}
        written = Counter[str]()
        for action, number in mentions.items():
            if len(action) <= 1_000 and (same := self.usable(action)) is not None:
                written[same] += number
        ordered = sorted(written, key=lambda one: (-written[one], one))
        self.actions = ordered[:_POOL] or self.offered[:_POOL] or [_GARBAGE]
        self.weights = [math.sqrt(written[action] + 1) for action in self.actions]

    def prefer(self, best: Sequence[str]) -> None:
        """Put the best of many offered actions into the pool: the first three in front, with the highest weight."""
        weights, most = dict(zip(self.actions, self.weights, strict=True)), max(self.weights)
        chosen = dict.fromkeys([*best[:3], *self.actions[: _POOL - 2 * len(best)], *best[3:]])
        self.actions = list(chosen)
        self.weights = [max(weights.get(one, 0.0), most if one in best else 1.0) for one in chosen]

    def usable(self, action: str) -> str | None:
        """Return an action as it is written in sequences; ``None`` if nobody can play it."""
        if self.arena.converter is None and action in self._played:  # a declared text space is often wrong
            return action
        return self.arena.readable(action)

    def _first_observations(self) -> list[str]:
        begun = (self.arena.begin(self.arena.training(number)) for number in range(4))
        return [one.last.observation for one in begun if one.stop_reason is None]

    def _understood(self, texts: list[str]) -> list[str]:
        """Return the texts to which the environment reacts differently than to nonsense, tried in a few episodes.

        With few steps, texts are tried in fewer episodes; where one answer ends an episode, those that are answered
        alike in these are kept as well: a right answer is a wrong one in most episodes.
        """
        numbers = range(max(1, min(_TRIALS, int(self.arena.left / 4 / (len(texts) + 1)))))
        nonsense = [self._reaction(_GARBAGE, number) for number in numbers]
        reactions = {one: [self._reaction(one, number) for number in numbers] for one in texts}
        kept = [one for one in texts if reactions[one] != nonsense]
        goes_on = any(isinstance(seen, tuple) and not any(seen[2:]) for one in kept for seen in reactions[one])
        if kept and (goes_on or len(numbers) == _TRIALS):
            return kept
        # All are answered alike; only what is called invalid is surely no action.
        some = [] if self.solvable else [one for one in texts if self.arena.readable(one) is not None]
        valid = [one for one in some if one in kept or reactions[one] != [False] * len(numbers)]
        return valid or kept or ([] if own_random_policy(self.arena.env) is not None else some[:_FEW])

    def _reaction(self, action: str, number: int) -> object:
        episode = self.arena.begin(self.arena.training(number))
        if episode.stop_reason is None:
            self.arena.step(episode, action)
        if episode.error is not None:
            return None
        last = episode.last
        if last.info.get("action_valid") is False:
            return False
        return last.observation.replace(action, ""), last.reward, last.terminated, last.truncated

    def _mentions(self) -> Counter[str]:
        """Return how often each action was played and listed; one of a success counts three times, a mined one not."""
        mentions = Counter[str](dict.fromkeys(self._mined, 0))
        for episode in self.episodes:
            mentions.update(dict.fromkeys(episode.listed, 1))
            won = 3 if episode.outcome is not None and episode.outcome.success else 1
            for action, valid in zip(episode.actions, episode.valid, strict=True):
                mentions[action] += won if valid else 0
        mentions.update(self.offered if len(self.offered) <= MANY else ())
        return mentions


def collected(arena: Arena, longest: int) -> Pool:
    """Return the actions of an environment, learned with an eighth of the steps."""
    pool = Pool(arena, longest)
    for share, collect in ((0.12, pool.survey), (0.13, pool.offer)):
        arena.limit = arena.steps * share
        with suppress(Spent):
            collect()
    pool.settle()
    return pool


def _exploring(seed: int, pool: Sequence[str], env: TextEnvironment) -> Actor:
    rng, play = random.Random(seed), random_play(env, seed)

    def act(observation: str, info: Mapping[str, Any]) -> str:
        return rng.choice(pool) if pool and plays_characters(env, info) else play(observation, info)

    return act


_QUOTED = re.compile(
    r"`([^`\n]{1,60})`|\"([^\"\n]{1,60})\"|(?<!\w)'([^'\n]{1,60})'|\[([^\]\n]{1,60})\]|>([^<\n]{1,60})</"
)
_MARKED = re.compile(r"\\boxed\{[^{}\n]{1,60}\}|\[(?:[A-Za-z][^\[\]\n]{0,11}|\d+(?: \d+)*)\]")
_RANGE = re.compile(r"(?:from |between )?(-?\d{1,4}) (?:to|and) (-?\d{1,4})")
_CLAUSE = re.compile(r"(?:[:.!?;\n]|\bwith\b|\bsay\b|\bis\b|\bare\b|\bof\b)\s*")
_ALTERNATIVES = re.compile(r",\s*(?:or |and )?|\s+or\s+|\s+and\s+|\s*\|\s*|\s*/\s*")
_WORD = re.compile(r"[\w#+-]+")


def mined(env: TextEnvironment, observations: Sequence[str]) -> Iterator[str]:
    """Yield texts that may be actions: examples, quotations, numbers of ranges, alternatives, and single words.

    >>> import gymnasium as gym
    >>> list(mined(gym.make("TrlEnv/KuhnPoker-v0"), ["Say 'pass'."]))[:2]
    ['pass', 'bet']
    """
    instructions = instructions_of(env)
    named = [" ".join(text.split()) for text in _maybe_actions(env, instructions, observations)]
    marked = islice(_marked((instructions, *observations), named), _MINED // 2)
    yield from filter(None, dict.fromkeys((*marked, *named)))


def _marked(texts: Sequence[str], named: Sequence[str]) -> Iterator[str]:
    r"""Yield examples of marked actions, such as ``\boxed{up}`` or ``[up]``, and named texts marked as they are."""
    examples = list(dict.fromkeys(example for text in texts for example in _MARKED.findall(text)))
    yield from examples
    boxed = any("\\boxed{" in text for text in texts)
    for text in named if boxed or examples else ():
        yield f"\\boxed{{{text}}}" if boxed else f"[{text}]"


def _maybe_actions(env: TextEnvironment, instructions: str, observations: Sequence[str]) -> Iterator[str]:
    for name in _EXAMPLES:
        examples = attribute_of(env, name)
        if isinstance(examples, Iterable) and not isinstance(examples, str):
            yield from map(str, examples)
    for text in (instructions, *observations):
        for quotation in _QUOTED.finditer(text):
            yield next(group for group in quotation.groups() if group)
    for text in (instructions, *observations[:1]):
        for low, high in _RANGE.findall(text):
            numbers = range(int(low), int(high) + 1)
            yield from map(str, numbers[:: max(1, len(numbers) // 24)])
    for clause in _CLAUSE.split(instructions):
        parts = _ALTERNATIVES.split(clause)
        if len(parts) > 1:
            yield from (part.strip(" .") for part in parts if len(part) <= 40)
    for text in (instructions, *observations):
        yield from _WORD.findall(text)
