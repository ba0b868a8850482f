"""Policies that copy parts of what they read."""

import re
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, TypeAlias

from gym_trl.env_checker.card.plays import ActorFor, Level, Plays, References, level_of
from gym_trl.env_checker.play import PlayedEpisode
from gym_trl.evaluation.estimates import exceed
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.random_play import Actor
from gym_trl.wrappers.admissible_actions import listed_actions
from gym_trl.wrappers.as_text import TextAction
from gym_trl.wrappers.base import layer_of

NOTHING_TO_COPY = "xyzzy"
"""Action where an observation does not have the part."""

Read: TypeAlias = Callable[[str], Sequence[str]]
"""Function from a text to its parts of one kind, in their order."""


def _matches(pattern: str) -> Read:
    form = re.compile(pattern)
    return lambda text: [next(group for group in one.groups() if group is not None) for one in form.finditer(text)]


def _lines(text: str) -> Sequence[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


_NUMBER = r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_KINDS: dict[str, Read] = {
    "line": _lines,
    "word": _matches(r"([\w+-]+)"),
    "number": _matches(rf"({_NUMBER})"),
    "quotation": _matches(r"\"([^\"\n]+)\"|'([^'\n]+)'|`([^`\n]+)`|“([^”\n]+)”"),
    "text in brackets": _matches(r"\(([^()\n]+)\)|\[([^\[\]\n]+)\]|\{([^{}\n]+)\}|<([^<>\n]+)>"),
    "text after a colon": _matches(r"[:=]\s*([^:=\n]*?[^:=\n.!?\s])[.!?]*\s*(?=\n|$|[.;] )"),
}
_WHOLE: dict[str, Callable[[str], str]] = {
    "the observation": str.strip,
    "all numbers": lambda text: " ".join(re.findall(_NUMBER, text)),
    "the longest word": lambda text: max(re.findall(r"\w+", text), key=len, default=""),
    "the last sentence": lambda text: re.split(r"(?<=[.!?])\s+", text.strip())[-1].rstrip(".!?"),
}


def parts(text: str) -> dict[str, str]:
    """Return what a policy could copy from a text, by the name of the part.

    >>> found = parts("The door is 'red'. Its code: 4711.")
    >>> found["the last quotation"], found["the last number"], found["the last text after a colon"]
    ('red', '4711', '4711')
    """
    texts = {name: read(text) for name, read in _WHOLE.items()}
    for kind, read in _KINDS.items():
        if some := read(text):
            texts |= {f"the last {kind}": some[-1], f"the first {kind}": some[0]}
    return {name: part for name, part in texts.items() if part}


NAMES = (*(f"the {end} {kind}" for kind in _KINDS for end in ("last", "first")), *_WHOLE, "the last named action")
"""All parts."""
_FIRST_READ = "of the first observation"
_CHOSEN, _TRIED, _TURNS = 3, 6, 100
"""Number of parts whose level is measured, and of episodes of each in the choice, with at most so many turns."""


def copying(part: str, *, first: bool = False) -> ActorFor:
    """Return the policy that answers with a part of the observation, or of the first one of the episode."""

    def actor_for(env: TextEnvironment, seed: int) -> Actor:
        remembered: list[str] = []

        def act(observation: str, info: Mapping[str, Any]) -> str:
            remembered.append(observation)
            text = remembered[0] if first else observation
            if part == "the last named action":
                return _last_named(text, _actions_of(env, info)) or NOTHING_TO_COPY
            return parts(text).get(part, NOTHING_TO_COPY)

        return act

    return actor_for


def best_copies(plays: Plays, references: References) -> list[tuple[Level, list[PlayedEpisode]]]:
    """Return the levels of the best policies that copy, and their episodes: of the parts that win or are paid most.

    Each part is tried in a few short episodes first; one that is never a valid action is left out. Where episodes have
    several turns, the same parts of the first observation are tried as well.
    """
    origins = ("", f" {_FIRST_READ}") if (references.chance.turns or 1.0) > 1.5 else ("",)
    policies = {f"copy {part}{origin}": copying(part, first=bool(origin)) for origin in origins for part in NAMES}
    began, tried = perf_counter(), dict[str, tuple[float, float]]()
    for name, actor_for in policies.items():
        if trial := _trial(plays, actor_for):
            tried[name] = trial
        if perf_counter() - began > 2 * plays.seconds:
            break
    chosen = sorted(tried, key=lambda name: tried[name], reverse=True)[:_CHOSEN]
    episodes = {name: plays.of(name, policies[name]) for name in chosen}
    return [(level_of(name, games, declares=plays.declares), games) for name, games in episodes.items()]


def _trial(plays: Plays, actor_for: ActorFor) -> tuple[float, float] | None:
    """Return the success and the sum of the returns of a few episodes; ``None`` if no action is valid in them."""
    games = [plays.play(actor_for, seed, most=_TURNS) for seed in plays.seeds[:_TRIED]]
    scored = [game for game in games if game.episode.scored]
    if not any(seen[5] is not False for game in scored for seen in game.seen[1:]):
        return None
    return sum(game.solved for game in scored) / len(scored), sum(game.total for game in scored)


def depends_on_text(plays: Plays, games: Sequence[PlayedEpisode]) -> bool:
    """Return whether copied actions are paid more in their own tasks than in the next ones, beyond chance."""
    few = [game for game in games if game.episode.scored][:60]
    more, began = [], perf_counter()
    for game, other in zip(few, [*few[1:], *few[:1]], strict=True):
        actions = iter(other.actions)
        swapped = plays.play(lambda env, seed: lambda text, info: next(actions, NOTHING_TO_COPY), game.seed)  # noqa: B023
        if swapped.episode.scored:
            more.append(game.total - swapped.total)
        if perf_counter() - began > plays.seconds:
            break
    return exceed(more)


def _last_named(text: str, actions: Sequence[str]) -> str | None:
    """Return the action whose name stands last in a text."""
    folded = text.casefold()
    places = {action: folded.rfind(action.casefold()) for action in actions if action}
    named = [action for action in places if places[action] >= 0]
    return max(named, key=lambda action: (places[action], len(action)), default=None)


def _actions_of(env: TextEnvironment, info: Mapping[str, Any]) -> Sequence[str]:
    """Return the actions that are listed or named."""
    if listed := listed_actions(env, info):
        return listed
    converter = layer_of(env, TextAction)
    return () if converter is None else converter.names
