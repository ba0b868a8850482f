"""Episodes that the checks play and compare."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from gym_trl.episode import Episode
from gym_trl.errors import SeatError, described, place_of, raise_interrupt
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import Witness, take_reset, take_step
from gym_trl.random_play import Actor
from gym_trl.text import counted
from gym_trl.types import StepResult, StopReason, Task

MOST_TURNS = 1_000
SHORT = 160


# ---------------------------------------------------------------------------------------------------------------------
# Playing
# ---------------------------------------------------------------------------------------------------------------------

Seen: TypeAlias = tuple[Any, ...]
"""Values that two episodes are compared by: action, observation, reward, flags, and entries of ``info``."""


@dataclass
class PlayedEpisode:
    """One episode with text, up to its end or a failure."""

    episode: Episode
    """The episode as training and evaluations judge it."""
    seen: list[Seen] = field(default_factory=list)
    error: str | None = None
    """Exception that ended it, with its place in the user's code, or the fault of a malformed result."""
    exception: BaseException | None = None
    """This exception."""
    seconds: list[float] = field(default_factory=list)
    """Seconds of the reset and of each step."""

    def see(self, action: str | None) -> None:
        """Note the result of a reset or step, unless it failed."""
        if self.episode.error is None:
            last = self.episode.last
            declared = last.info.get("action_valid"), last.info.get("success")
            flags = last.terminated, last.truncated
            self.seen.append((action, last.observation, last.reward, *flags, *declared))

    @property
    def seed(self) -> int:
        """Seed of the task."""
        return self.episode.task.seed

    @property
    def ended(self) -> bool:
        """True if the environment ended the episode."""
        return self.episode.last.terminated or self.episode.last.truncated

    @property
    def actions(self) -> list[str]:
        """Actions of all turns but one that raised."""
        return [seen[0] for seen in self.seen[1:]]

    @property
    def observations(self) -> list[str]:
        """Observations of the reset and of all steps."""
        return [seen[1] for seen in self.seen]

    @property
    def total(self) -> float:
        """Sum of the rewards."""
        return self.episode.paid

    @property
    def solved(self) -> bool:
        """Success is declared."""
        return self.episode.success is True


def play_one(
    env: TextEnvironment,
    seed: int,
    act: Actor | Sequence[str],
    most: int = MOST_TURNS,
    *,
    options: Mapping[str, Any] | None = None,
    on_result: Callable[[StepResult], None] | None = None,
) -> PlayedEpisode:
    """Play an episode with a policy or the actions of another episode; an exception ends it.

    Args:
        env: Environment.
        seed: Seed of the task.
        act: Policy, or actions.
        most: Maximum number of turns.
        options: Options of the task.
        on_result: Called with the result of the reset and of each step that did not fail.
    """
    witness, episode = Witness(env), Episode(Task("", seed, options or {}))
    game, actions = PlayedEpisode(episode, seconds=witness.seconds), iter(() if callable(act) else act)

    def see(action: str | None) -> None:
        game.see(action)
        if on_result is not None and episode.error is None:
            on_result(episode.last)

    try:
        episode.begin(take_reset(witness, episode.task))
        see(None)
        while episode.stop_reason is None and len(episode.turns) < most:
            action = act(episode.last.observation, episode.last.info) if callable(act) else next(actions, None)
            if action is None:
                break
            episode.answer(action)
            episode.step(take_step(witness, action))
            see(action)
    except BaseException as error:
        raise_interrupt(error)
        witness.error = witness.error or error
        episode.stop(StopReason.ENV_ERROR, described(error))
    if episode.stop_reason is None:  # cut off here
        episode.earn(min(0.0, episode.loss_return - episode.paid))
        episode.stop(StopReason.TURN_LIMIT)
    if episode.error is not None:
        game.exception = witness.error
        malformed = shortened(episode.error.partition(" raised ")[2])
        game.error = malformed if witness.error is None else describe_error(witness.error)
    return game


@dataclass
class SeatGame:
    """Observations of one random game."""

    seed: int
    shown: list[tuple[int, str]] = field(default_factory=list)
    """Seat and observation: of the reset, and of each valid action that does not end the game."""
    payoffs: tuple[float, ...] = ()
    """Sum of the payoffs of each seat."""
    successes: tuple[bool, ...] = ()
    ended: bool = False
    error: str | None = None

    def add(self, result: StepResult) -> None:
        """Note the result of the reset, or of a step."""
        info = result.info
        payoffs = info.get("payoffs", ())
        self.payoffs = tuple(map(sum, zip(self.payoffs or (0.0,) * len(payoffs), payoffs, strict=True)))
        if result.terminated or result.truncated:
            self.ended, self.successes = True, tuple(info["successes"])
        elif info.get("action_valid", True):
            self.shown.append((int(info["to_move"]), result.observation))


def play_seats(env: TextEnvironment, seed: int, act: Actor, most: int = MOST_TURNS) -> SeatGame:
    """Play a game of several seats, wrapped in ``Seats``, with one policy for all of them; an exception ends it."""
    game = SeatGame(seed)
    played = play_one(env, seed, act, most, on_result=game.add)
    if played.error is not None:
        broken = isinstance(played.exception, SeatError)
        game.error = str(played.exception) if broken else f"raised {played.error}"
    return game


def difference(first: Sequence[list[Seen]], second: Sequence[list[Seen]]) -> str | None:
    """Return a description of the first difference between episodes that should be the same."""
    names = ("action", "observation", "reward", "terminated", "truncated", "action_valid", "success")
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


def duration(seconds: float) -> str:
    """Return seconds with a unit.

    >>> duration(2), duration(0.0015), duration(2e-5)
    ('2 s', '1.5 ms', '20 µs')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.0f} µs"
