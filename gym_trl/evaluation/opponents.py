"""Policies that play against a person: as the opponent in a game for two, or on the same task in parallel."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gym_trl.envs.two_player import TwoPlayerEnv
from gym_trl.envspec import EnvSpec
from gym_trl.errors import ConfigError, EngineError
from gym_trl.evaluation.play import PlayedTurn
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import MAX_TURNS, read_step
from gym_trl.policies.functions import NamedPolicy
from gym_trl.policies.model import Model
from gym_trl.policies.protocol import ModelStopped
from gym_trl.seeding import derive_seed
from gym_trl.text.parsing import extract_action
from gym_trl.types import Policy, RefusedResponse, UnfinishedResponse

PolicyFor = Callable[[TextEnvironment, int], Policy]


class Said(NamedTuple):
    """Response of an opponent, and the action that was read from it."""

    answer: str
    action: str | None


class Challenger:
    """Policy, by any name that ``gym-trl eval`` accepts, that plays against a person.

    The model of a run plays as it was trained: with its instructions, its action format and its other arguments of
    ``GymSpec``. An invalid action costs nothing here, as it costs the person nothing.

    Args:
        player: The policy; a model is loaded.
        action_format: Format in which a language model marks its actions, unless its run had another one.

    Raises:
        ConfigError: there is no such model.
    """

    def __init__(self, player: NamedPolicy, action_format: str | None = "tag") -> None:
        self.name = player.name
        self._player = player
        trained = player.spec if isinstance(player, Model) else {}
        self._spec = {"action_format": action_format, **trained, "invalid_penalty": 0.0}
        self.action_format: str | None = self._spec["action_format"] if player.marks else None
        self._make: PolicyFor = player.load().policy if isinstance(player, Model) else player.make

    def dressed(self, make: Callable[[], TextEnvironment]) -> TextEnvironment:
        """Return the environment as the policy sees it."""
        if not self._player.marks:
            return make()
        spec = EnvSpec.from_options(make, self._spec)
        return spec.make(next(iter(spec.weights)))

    def policy(self, env: TextEnvironment, seed: int) -> Policy:
        """Return the policy of one episode; its actions contain marks.

        Raises:
            ConfigError: the environment has no such policy.
        """
        if not isinstance(self._player, Model):
            self._player.check(env)
        return self._make(env, seed)

    def read(self, answer: str) -> str | None:
        """Return the action in a response."""
        if self._spec.get("cut_actions") == "accept" and isinstance(answer, UnfinishedResponse):
            answer = str(answer)
        if self.action_format is not None:
            return extract_action(answer, self.action_format, strict=bool(self._spec.get("strict")))
        return None if isinstance(answer, UnfinishedResponse | RefusedResponse) else answer


# ---------------------------------------------------------------------------------------------------------------------
# Games for two
# ---------------------------------------------------------------------------------------------------------------------


def is_for_two(env: TextEnvironment) -> bool:
    """Return whether an environment has an opponent that can be replaced.

    >>> import gymnasium as gym
    >>> is_for_two(gym.make("TrlEnv/Nim-v0")), is_for_two(gym.make("TrlEnv/Echo-v0"))
    (True, False)
    """
    return isinstance(env.unwrapped, TwoPlayerEnv)


class Opposing:
    """Opponent in a game for two; its responses are stored, so that they are the same after an undo.

    >>> import gymnasium as gym
    >>> from gym_trl.policies.functions import as_policy
    >>> opposing = Opposing(Challenger(as_policy("solver")), lambda **more: gym.make("TrlEnv/TicTacToe-v0", **more), 0)
    >>> env = gym.make("TrlEnv/TicTacToe-v0", seat="first", **opposing.arguments)
    >>> _ = env.reset(seed=0), env.step("1")
    >>> opposing.spoken  # only the middle does not lose
    [Said(answer='5', action='5')]

    A response without a legal action is replaced by a random action, as in any game for two. ``random`` is the game's
    own opponent, because only the game knows the legal actions.

    Args:
        challenger: The policy.
        make: Makes the environment, with further arguments.
        seed: Seed of the episode.

    Raises:
        ConfigError: the environment has no such policy.
    """

    def __init__(self, challenger: Challenger, make: Callable[..., TextEnvironment], seed: int) -> None:
        self.spoken: list[Said] = []
        """Its responses since this list was last cleared."""
        self._challenger = challenger
        self._seed = seed
        self._answers: dict[tuple[str, ...], str] = {}
        self._playing: dict[tuple[str, ...], Policy] = {}  # by the observations that each has received
        # Without instructions, the policy gets an environment of the other side: a game's solver plays either side.
        own = {} if challenger.action_format is not None else {"opponent": "self"}
        self._told = challenger.dressed(lambda: make(**own))
        self._told.reset(seed=seed)
        if challenger.name != "random":
            self._begun()  # raises now for an invalid policy

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments for the person's environment."""
        return {"opponent": "random" if self._challenger.name == "random" else self._begin}

    def _begin(self) -> Policy:
        """Return the policy of one episode."""
        told: tuple[str, ...] = ()

        def answer(observation: str) -> str:
            nonlocal told
            told = (*told, observation)
            if told not in self._answers:
                self._answers[told] = self._ask(told)
            said = self._answers[told]
            action = self._challenger.read(said)
            self.spoken.append(Said(said, action))
            if action is None and isinstance(said, UnfinishedResponse | RefusedResponse):
                return ""  # a part of an action is not played
            return said if action is None else action

        return answer

    def _ask(self, told: tuple[str, ...]) -> str:
        """Return the response to the last observation, from the policy that has received most of the earlier ones."""
        known = max((past for past in self._playing if told[: len(past)] == past), key=len, default=None)
        policy = self._begun() if known is None else self._playing.pop(known)
        self._playing[told] = policy
        for observation in told[len(known or ()) :]:
            said = _asked(policy, observation)
        return said

    def _begun(self) -> Policy:
        return self._challenger.policy(self._told, derive_seed(self._seed, "opponent"))


def _asked(policy: Policy, observation: str) -> str:
    """Return a response; a failure of the model becomes a text, so that the game continues."""
    try:
        return policy(observation)
    except ModelStopped as stopped:
        return f"({stopped.reason}: {stopped})"


# ---------------------------------------------------------------------------------------------------------------------
# Games for one
# ---------------------------------------------------------------------------------------------------------------------


class Race:
    """Episode of the same task, played by another policy turn by turn.

    >>> import gymnasium as gym
    >>> from gym_trl.policies.functions import as_policy
    >>> race = Race(Challenger(as_policy("solver")), lambda: gym.make("TrlEnv/GuessNumber-v0", high=8), 1)
    >>> race.play(1).turns, race.play().over, race.total
    (1, True, 1.0)

    Args:
        challenger: The policy.
        make: Makes the environment.
        seed: Seed of the episode.

    Raises:
        ConfigError: the environment has no such policy.
    """

    def __init__(self, challenger: Challenger, make: Callable[[], TextEnvironment], seed: int) -> None:
        self.name = challenger.name
        self.played: list[PlayedTurn] = []
        self.stopped: str | None = None
        """Reason why it cannot continue, if any."""
        self._env = challenger.dressed(make)
        self._observation, _ = self._env.reset(seed=seed)
        self._policy = challenger.policy(self._env, derive_seed(seed, "race"))

    @property
    def turns(self) -> int:
        """Number of turns played."""
        return len(self.played)

    @property
    def over(self) -> bool:
        """True if the episode has ended."""
        last = self.played[-1].result if self.played else None
        return self.stopped is not None or (last is not None and (last.terminated or last.truncated))

    @property
    def total(self) -> float:
        """Undiscounted return so far."""
        return math.fsum(turn.result.reward for turn in self.played)

    @property
    def solved(self) -> bool | None:
        """True if it has solved the task; ``None`` if success is not declared."""
        if not self.over or self.stopped is not None:
            return False
        said: bool | None = self.played[-1].result.info.get("success")
        return said

    def play(self, turns: int = MAX_TURNS) -> "Race":
        """Play until this number of turns, or to the end.

        Raises:
            EngineError: a server rejects requests, or generation failed for every episode.
        """
        while not self.over and self.turns < turns:
            try:
                action = self._policy(self._observation)
                result = read_step(*self._env.step(action))
            except EngineError:
                raise
            except Exception as error:  # a policy can raise anything; the person continues
                self.stopped = f"{type(error).__name__}: {error}"
                return self
            self.played.append(PlayedTurn(self._observation, action, result))
            self._observation = result.observation
        return self

    def close(self) -> None:
        """Close its environment."""
        self._env.close()


def winner(mine: tuple[float, bool | None, int], other: tuple[float, bool | None, int]) -> int:
    """Return 1 if the first result is better, -1 if the second is, and 0 if they are equal.

    >>> winner((1.0, True, 4), (1.0, True, 5)), winner((0.2, False, 3), (1.0, True, 5))
    (1, -1)
    >>> winner((0.0, False, 4), (0.0, False, 5))
    0

    A result is a return, success (if it is declared), and the number of turns. The higher return is better; if returns
    are equal and the task was solved, fewer turns are better.
    """
    (total, solved, turns), (others, _, longer) = mine, other
    if not math.isclose(total, others, abs_tol=1e-9):
        return 1 if total > others else -1
    return 0 if not solved or turns == longer else 1 if turns < longer else -1


def check_against(env: TextEnvironment, arguments: Mapping[str, Any]) -> None:
    """Check that the opponent in a game for two is given only once.

    Raises:
        ConfigError: it is given twice.
    """
    if is_for_two(env) and "opponent" in arguments:
        raise ConfigError("--env opponent=... and --against both say who the opponent is: give one of them")
