"""Adapter to the data sets of reasoning-gym, with one question per episode."""

from typing import Any

from gym_trl.envs.external.adapter import Adapter, Played
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
        render_mode: ``None``; rendering is not supported.
        **config: Arguments of the data set, such as ``min_animals``.

    Raises:
        MissingDependencyError: reasoning-gym is not installed.
        ConfigError: The data set does not exist, or it does not accept ``config``.
    """

    extra = "reasoning-gym"
    instructions = "Answer with the final answer and nothing else."

    def __init__(self, dataset: str, *, render_mode: None = None, **config: Any) -> None:
        super().__init__()
        self.dataset = dataset
        self._make = self._import("reasoning_gym").create_dataset
        self._config = config
        self._questions: Any = None
        self._entry: Any = None
        try:
            self._make(dataset, seed=1, size=1, **config)
        except (ValueError, TypeError, AssertionError) as error:
            raise ConfigError(f"reasoning-gym cannot make {dataset!r} with {config}: {error}") from error

    @classmethod
    def offered(cls) -> list[dict[str, Any]]:
        """Return the arguments of each data set of reasoning-gym."""
        cls._import("reasoning_gym", "reasoning_gym.factory")
        from reasoning_gym.factory import DATASETS

        return [{"dataset": name} for name in sorted(DATASETS)]

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._questions = self._make(self.dataset, seed=seed, size=1, **self._config)
        self._entry = self._questions[0]
        return str(self._entry["question"]), {}

    def _play(self, action: str) -> Played:
        valid = True
        try:
            score = float(self._questions.score_answer(action, self._entry))
        except Exception:  # scorers raise various exceptions for unreadable responses
            score, valid = 0.0, False
        return Played(f"Score: {score:g}", score, terminated=True, success=score >= 1.0, valid=valid)
