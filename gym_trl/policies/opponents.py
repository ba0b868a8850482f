"""Policies in the other seats of a game."""

from collections.abc import Callable
from typing import NamedTuple

from gym_trl.executors.protocol import TextEnvironment
from gym_trl.text.chat_client import ModelStopped
from gym_trl.types import Policy
from gym_trl.wrappers.parse_action import action_finder


class Response(NamedTuple):
    """Response of an opponent, and the action that was parsed from it, if any."""

    text: str
    action: str | None


class Opponent:
    """Opponent of a person; its responses are stored, so that they are the same after an undo.

    >>> import gymnasium as gym
    >>> from gym_trl import wrappers
    >>> env = gym.make("TrlEnv/TicTacToe-v0")
    >>> opponent = Opponent(lambda: lambda observation: "5", env)
    >>> seated = wrappers.Opponent(env, lambda seed: opponent.begin())
    >>> _ = seated.reset(seed=0), seated.step("1")
    >>> opponent.responses
    [Response(text='5', action='5')]

    A response without an action is an illegal action of the opponent.

    Args:
        make_policy: Makes the policy of an episode.
        env: Environment as the policy sees it; its ``ParseAction``, if any, parses the responses.
    """

    def __init__(self, make_policy: Callable[[], Policy], env: TextEnvironment) -> None:
        self.responses: list[Response] = []
        """Responses since this list was last cleared."""
        self._make_policy = make_policy
        self._parse = action_finder(env)
        self._stored: dict[tuple[str, ...], Response] = {}
        """Responses by the observations so far."""
        self._policy = make_policy()
        self._seen: tuple[str, ...] = ()
        """Observations that the policy has received."""

    def begin(self) -> Policy:
        """Return the policy of one episode."""
        seen: tuple[str, ...] = ()

        def act(observation: str) -> str:
            nonlocal seen
            seen = (*seen, observation)
            if seen not in self._stored:
                self._stored[seen] = self._respond(seen)
            response = self._stored[seen]
            self.responses.append(response)
            return "" if response.action is None else response.action  # a part of an action is not played

        return act

    def _respond(self, seen: tuple[str, ...]) -> Response:
        """Return the response to the last observation; a new policy receives the earlier ones first, if necessary."""
        if self._seen != seen[: len(self._seen)]:
            self._policy, self._seen = self._make_policy(), ()
        missing, self._seen = seen[len(self._seen) :], seen
        try:
            text = [self._policy(observation) for observation in missing][-1]
        except ModelStopped as stopped:
            return Response(f"({stopped.reason}: {stopped})", None)
        return Response(text, self._parse(text))
