"""Episodes of text policies, without token ids: one of them, or a seat of a game."""

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TypeAlias

import gymnasium as gym

from gym_trl.errors import EngineError, PolicyError, described, raise_interrupt, stops_a_rollout
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import MAX_TURNS, take_reset, take_step
from gym_trl.kinds import check_option
from gym_trl.rollout.episode import Act
from gym_trl.rollout.log import EpisodeLog
from gym_trl.text.chat_client import ModelStopped
from gym_trl.types import Answer, EnvFailure, EpisodeResult, Message, Policy, StepResult, StopReason, Task

SeatPolicy: TypeAlias = Callable[[StepResult], str | Answer]
"""Function that plays one episode, or a seat of one game: from the result of its reset or its last step to a response.
The observation and its ``info`` are those of the seat."""


class TextPlayer:
    """Episode of a text policy: ``started`` once, then ``stepped``, until one returns its result.

    >>> player = TextPlayer(Task("TrlEnv/Echo-v0", seed=1), lambda result: result.observation.removeprefix("Say "))
    >>> player.started(StepResult("Say ox"))
    Act(action='ox')
    >>> player.stepped(StepResult("", reward=1.0, terminated=True, info={"success": True})).episode_return
    1.0

    A ``ModelStopped`` of the policy ends the episode with its reason. Anything else that the policy raises leaves the
    episode unscored, but for ``ConfigError``, ``EngineError`` and ``PolicyError``, which are raised.

    Args:
        task: Task of the episode.
        policy: Plays the episode.
        preamble: Messages before the first observation.
        turn_limit: Number of turns after which the episode is cut off.
    """

    def __init__(
        self,
        task: Task,
        policy: SeatPolicy,
        *,
        preamble: Sequence[Message] = (),
        turn_limit: int = MAX_TURNS,
    ) -> None:
        self.task = task
        self.log = EpisodeLog(task, preamble=preamble)
        self.seconds = 0.0
        """Seconds in the policy."""
        self._policy = policy
        self._turn_limit = turn_limit

    def started(self, result: StepResult | EnvFailure) -> Act | EpisodeResult:
        """Process the result of the environment's reset and return what to do next."""
        return self._go_on() if self.log.begin(result) is None else self.log.result()

    def stepped(self, result: StepResult | EnvFailure) -> Act | EpisodeResult:
        """Process the result of the environment's step and return what to do next."""
        return self._go_on() if self.log.step(result) is None else self.log.result()

    def stopped(self, reason: StopReason, error: str | None = None) -> EpisodeResult:
        """End the episode now and return its result."""
        self.log.stop(reason, error)
        return self.log.result()

    def _asked(self, response: str | Answer | BaseException) -> Act | EpisodeResult:
        """Process what the policy has returned or raised, and return what to do next.

        Raises:
            ConfigError: The policy raised it.
            EngineError: The policy raised it.
            PolicyError: The policy raised it.
        """
        if isinstance(response, BaseException):
            if isinstance(response, ModelStopped):
                return self.stopped(response.reason, str(response))
            if isinstance(response, EngineError | PolicyError) or stops_a_rollout(response):
                raise response
            return self.stopped(StopReason.ENV_ERROR, f"the policy raised {described(response)}")
        text = response.text if isinstance(response, Answer) else response
        if not isinstance(text, str):
            return self.stopped(StopReason.ENV_ERROR, f"the policy must return a text, got {text!r:.80}")
        self.log.answer(response)
        return Act(text)

    def _go_on(self) -> Act | EpisodeResult:
        if len(self.log.turns) >= self._turn_limit:
            return self.stopped(StopReason.TURN_LIMIT)
        began = perf_counter()
        try:
            response: str | Answer | BaseException = self._policy(self.log.last)
        except BaseException as error:
            raise_interrupt(error)
            response = error
        self.seconds += perf_counter() - began
        return self._asked(response)


OnTurn: TypeAlias = Callable[[str, StepResult | EnvFailure], None]
"""Callback for every step, with its action and its result."""


def play(
    env: TextEnvironment,
    task: Task,
    policy: Callable[[TextEnvironment], Policy],
    *,
    on_turn: OnTurn | None = None,
) -> EpisodeResult:
    """Play one episode with a text policy and return its result; no model is needed.

    >>> import gymnasium as gym
    >>> env = gym.make("TrlEnv/GuessNumber-v0")
    >>> played = play(env, Task("TrlEnv/GuessNumber-v0", seed=3), lambda env: env.get_wrapper_attr("solver")())
    >>> played.stop_reason.value, played.episode_return, [turn.answer.text for turn in played.turns]
    ('success', 1.0, ['25', '38', '44', '41'])

    It is judged as in training and in an evaluation: a crash that an action causes is scored, a failure of the
    infrastructure is not, and a limit is charged the settlement.

    Args:
        env: Environment with text observations and actions, such as ``gym_trl.wrappers.as_text`` makes of any other;
            it is not closed.
        task: Seed and options of the reset.
        policy: Makes the policy of the episode, from the environment after its reset.
        on_turn: Called with each action and the result of its step.

    Raises:
        ConfigError: An argument is something else, or the environment or the policy raised it.
    """
    check_option("env", env, gym.Env)
    check_option("task", task, Task)
    check_option("policy", policy, Callable)
    return drive(env, TextPlayer(task, made_later(partial(policy, env))), on_turn=on_turn)


def drive(env: TextEnvironment, player: TextPlayer, *, on_turn: OnTurn | None = None) -> EpisodeResult:
    """Play one episode as ``play`` does, with a player that was made before.

    >>> import gymnasium as gym
    >>> player = TextPlayer(Task("TrlEnv/GuessNumber-v0", seed=3), lambda result: "25", turn_limit=2)
    >>> played = drive(gym.make("TrlEnv/GuessNumber-v0"), player)
    >>> played.stop_reason.value, len(played.turns), played.success
    ('turn_limit', 2, False)
    """
    began = perf_counter()
    todo = player.started(take_reset(env, player.task))
    while isinstance(todo, Act):
        result = take_step(env, todo.action)
        if on_turn is not None:
            on_turn(todo.action, result)
        todo = player.stepped(result)
    return todo.timed(player.seconds, perf_counter() - began - player.seconds)


def made_later(make: Callable[[], Policy]) -> SeatPolicy:
    """Return a policy that is made after the reset of its environment, before its first response."""
    made: Policy | None = None

    def act(result: StepResult) -> str:
        nonlocal made
        made = made or make()
        return made(result.observation)

    return act
