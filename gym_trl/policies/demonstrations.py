"""Demonstrations: episodes whose responses are given, transcribed as if a model had sampled them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym

from gym_trl.engines.protocol import Engine
from gym_trl.errors import described, raise_interrupt
from gym_trl.executors.make import make_pool
from gym_trl.executors.protocol import EnvFactory, TextEnvironment
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.loop import run_episodes
from gym_trl.types import Completion, EpisodeResult, FinishReason, Request, TokenIds

Respond: TypeAlias = Callable[[str], TokenIds]
"""Function from an observation to the ids of a response."""


class Script(NamedTuple):
    """Episode that is to be played, and the source of its responses."""

    episode: Episode
    respond: Callable[[TextEnvironment], Respond]
    """Makes the function that responds, from the environment after its reset."""


def demonstrate(
    make: EnvFactory, scripts: Sequence[Script], *, on_finish: Callable[[int, EpisodeResult], None] | None = None
) -> list[EpisodeResult]:
    """Play episodes whose responses are given, and return their results in order.

    >>> from gym_trl.rollout import Limits
    >>> from gym_trl.testing import ByteChat
    >>> from gym_trl.types import Task
    >>> chat = ByteChat()
    >>> episode = Episode(Task("TrlEnv/Echo-v0", 0), chat=chat, limits=Limits(tokens_per_turn=9))
    >>> def repeat(env):
    ...     return lambda observation: chat.say(observation)
    >>> [played] = demonstrate(gym.make, [Script(episode, repeat)])
    >>> played.stop_reason.value, chat.show(played.trace.completion_ids), sum(played.trace.mask)
    ('success', 'woadw<end>', 6)

    The episodes run in the loop of every rollout, on an engine that returns the given responses: a response
    longer than ``max_tokens`` is cut off as a model's is, and the transcripts are those of a rollout in which a model
    sampled the same ids. Logprobs are ``None``, because nothing was sampled. Episodes are played one after the other
    in the calling thread. An exception while responding makes its episode unscored; the exception is its ``error``.

    Args:
        make: Makes an environment from its id.
        scripts: New episodes and the sources of their responses.
        on_finish: Called with the index and the result of each episode as soon as it has finished.
    """
    stage = _Stage(make, [script.respond for script in scripts])
    with make_pool(stage.make) as pool:
        episodes = [script.episode for script in scripts]
        return run_episodes(episodes, pool=pool, engine=stage, max_alive=1, on_finish=on_finish)


class _Stage(Engine):
    """Engine that gets its responses from an episode's source, and maker of environments that it watches."""

    def __init__(self, make: EnvFactory, sources: Sequence[Callable[[TextEnvironment], Respond]]) -> None:
        self._make = make
        self._sources = sources
        self._asked: list[Request] = []
        self._respond: Respond | None = None
        self.env: TextEnvironment | None = None
        """Environment of the one episode that is being played."""
        self.observation = ""
        """Last observation of the environment, of full length."""

    def make(self, env_id: str) -> TextEnvironment:
        return _Watched(self._make(env_id), self)

    def submit(self, request: Request) -> None:
        self._asked.append(request)

    def collect(self, *, block: bool) -> list[Completion]:
        asked, self._asked = self._asked, []
        return [self._complete(request) for request in asked]

    def cancel(self, request_id: str) -> None:
        self._asked = [request for request in self._asked if request.id != request_id]

    def _complete(self, request: Request) -> Completion:
        assert self.env is not None
        try:
            if request.turn == 1:
                self._respond = self._sources[int(request.episode_id)](self.env)
            assert self._respond is not None
            response = self._respond(self.observation)
        except BaseException as error:  # any exception becomes its episode's result
            raise_interrupt(error)
            return Completion(request.id, [], [], FinishReason.ERROR, described(error))
        ids = response[: request.max_tokens]
        finish = FinishReason.STOP if len(ids) == len(response) else FinishReason.LENGTH
        return Completion(request.id, ids, [None] * len(ids), finish)


class _Watched(gym.Wrapper[str, str, str, str]):
    """Environment that tells the stage what it shows."""

    def __init__(self, env: TextEnvironment, stage: _Stage) -> None:
        super().__init__(env)
        self._stage = stage

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._stage.env, self._stage.observation = self.env, observation
        return observation, info

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        stepped = self.env.step(action)
        self._stage.observation = stepped[0]
        return stepped
