"""Adapter to the data sets of reasoning-gym, with one question per episode."""

from typing import Any

from gym_trl.envs.external.adapter import Adapter
from gym_trl.envs.text_game import Step
from gym_trl.errors import ConfigError


class ReasoningGym(Adapter):
    """Question of a reasoning-gym data set, rewarded with its scorer's score from 0 to 1.

    ::

        env = gym.make("External/ReasoningGym-v0", dataset="leg_counting")
        env.reset(seed=0)[0]
        'Your task is to count how many legs there are in total when given a list of animals...'

    The seed determines the question; their number is unlimited. The scorer's own rules apply: a response that contains
    the solution among other words often gets part of the reward, and some scorers (of 106 data sets, 18) give a small
    reward for any text. If a scorer raises an exception, the reward is 0 and the action is invalid.

    Args:
        dataset: Name for ``reasoning_gym.create_dataset``.
        **config: Arguments of the data set, such as ``min_animals``.

    Raises:
        MissingDependencyError: reasoning-gym is not installed.
        ConfigError: The data set does not exist, or it does not accept ``config``.
    """

    extra = "reasoning-gym"
    instructions = "Answer with the final answer and nothing else."

    def __init__(self, dataset: str, **config: Any) -> None:
        super().__init__()
        self.dataset, self.config = dataset, config
        self._make = self._import("reasoning_gym").create_dataset
        try:
            self._make(dataset, seed=1, size=1, **config)
        except (ValueError, TypeError, AssertionError) as error:
            raise ConfigError(f"reasoning-gym cannot make {dataset!r} with {config}: {error}") from error

    def begin(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Ask a question."""
        self._questions = self._make(self.dataset, seed=seed, size=1, **self.config)
        self._entry = self._questions[0]
        return str(self._entry["question"]), {}

    def play(self, action: str) -> Step:
        """Score an answer."""
        valid = True
        try:
            score = float(self._questions.score_answer(action, self._entry))
        except Exception:  # scorers raise various exceptions for unreadable responses
            score, valid = 0.0, False
        return Step(f"Score: {score:g}", done=True, success=score >= 1.0, valid=valid, reward=score)
