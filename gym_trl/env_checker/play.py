"""Episodes that the checks play and compare."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

from gym_trl.env_checker.leaks import SeatGame
from gym_trl.errors import SeatError, described, place_of, raise_interrupt
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import images_of, read_result, read_step
from gym_trl.rollout.random_play import Actor
from gym_trl.text.textify import counted
from gym_trl.types import Policy
from gym_trl.wrappers.inner import text_of

MOST_TURNS = 1_000
SHORT = 160


# ---------------------------------------------------------------------------------------------------------------------
# Playing
# ---------------------------------------------------------------------------------------------------------------------

Seen: TypeAlias = tuple[Any, ...]
"""Values that two episodes are compared by: action, observation, reward, flags, entries of ``info``, and images."""


@dataclass
class PlayedEpisode:
    """One episode with text, up to its end or a failure."""

    seed: int
    seen: list[Seen] = field(default_factory=list)
    ended: bool = False
    success: Any = None
    """``info["success"]`` of the last step, if any."""
    error: str | None = None
    reset_s: float = 0.0
    step_s: list[float] = field(default_factory=list)

    @property
    def actions(self) -> list[str]:
        """Actions of all turns."""
        return [seen[0] for seen in self.seen[1:]]

    @property
    def observations(self) -> list[str]:
        """Observations of the reset and of all steps."""
        return [seen[1] for seen in self.seen]

    @property
    def total(self) -> float:
        """Sum of the rewards."""
        return math.fsum(seen[2] for seen in self.seen[1:])

    @property
    def solved(self) -> bool:
        """The episode ended with success."""
        return self.ended and bool(self.success)


def without_info(policy: Policy) -> Actor:
    """Return a policy as an actor that ignores ``info``."""
    return lambda observation, info: policy(observation)


def play_one(
    env: TextEnvironment,
    seed: int,
    act: Actor | Sequence[str],
    most: int = MOST_TURNS,
    options: Mapping[str, Any] | None = None,
) -> PlayedEpisode:
    """Play an episode with a policy or the actions of another episode; an exception ends it."""
    game = PlayedEpisode(seed)
    actions = None if callable(act) else iter(act)
    try:
        began = perf_counter()
        observation, info = env.reset(seed=seed, options=dict(options or {}) or None)
        game.reset_s = perf_counter() - began
        game.seen.append((None, text_of(observation), 0.0, False, False, None, None, images_of(info)))
        for _ in range(most):
            action = act(observation, info) if callable(act) else next(actions or iter(()), None)
            if action is None:
                break
            began = perf_counter()
            step = env.step(action)
            game.step_s.append(perf_counter() - began)
            result = read_result(env, step)
            observation, info, game.success = result.observation, dict(result.info), result.info.get("success")
            flags = result.terminated, result.truncated
            said = result.info.get("action_valid"), result.info.get("success")
            game.seen.append((action, observation, result.reward, *flags, *said, result.images))
            if any(flags):
                game.ended = True
                break
    except BaseException as error:
        raise_interrupt(error)
        game.error = describe_error(error)
    return game


def play_seats(env: TextEnvironment, seed: int, act: Actor, most: int = MOST_TURNS) -> SeatGame:
    """Play a game of several seats, wrapped in ``Seats``, with one policy for all of them; an exception ends it."""
    game = SeatGame(seed)
    try:
        observation, info = env.reset(seed=seed, options=None)
        game.shown.append((int(info["to_move"]), text_of(observation)))
        for _ in range(most):
            step = read_step(*env.step(act(observation, info)))
            observation, info = step.observation, dict(step.info)
            payoffs = info.get("payoffs")
            if payoffs is not None:
                game.payoffs = tuple(map(sum, zip(game.payoffs or (0.0,) * len(payoffs), payoffs, strict=True)))
            if step.terminated or step.truncated:
                game.ended, game.successes = True, tuple(info["successes"])
                break
            if info.get("action_valid", True):
                game.shown.append((int(info["to_move"]), observation))
    except SeatError as error:
        game.error = str(error)
    except BaseException as error:
        raise_interrupt(error)
        game.error = f"raised {describe_error(error)}"
    return game


def difference(first: Sequence[list[Seen]], second: Sequence[list[Seen]]) -> str | None:
    """Return a description of the first difference between episodes that should be the same."""
    names = ("action", "observation", "reward", "terminated", "truncated", "action_valid", "success", "images")
    for seed, (one, other) in enumerate(zip(first, second, strict=True)):
        for turn, (seen, again) in enumerate(zip(one, other, strict=False)):
            for name, this, that in zip(names, seen, again, strict=True):
                if this != that:
                    values = f"{shortened(repr(this), 60)}, then {shortened(repr(that), 60)}"
                    return f"seed {seed}, turn {turn}: {name} {values}"
        if len(one) != len(other):
            return f"seed {seed}: {counted(len(one) - 1, 'turn')}, then {len(other) - 1}"
    return None


def shortened(text: str, length: int = SHORT) -> str:
    """Return a text in one line of at most ``length`` characters."""
    # Control characters of an environment must not reach the terminal.
    line = "".join(char if char.isprintable() else "�" for char in " ".join(text.split()))
    return line if len(line) <= length else f"{line[: length - 3]}..."


def kind_of(value: Any) -> str:
    """Return the type and the beginning of a value."""
    return f"{type(value).__name__} {shortened(repr(value), 60)}"


def describe_error(error: BaseException) -> str:
    """Return a description of an exception, with its place in the user's own code."""
    place = place_of(error)
    where = place and f" ({Path(place.filename).name}:{place.lineno})"
    return f"{shortened(described(error))}{where or ''}"
