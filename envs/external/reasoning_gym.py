"""The data sets of reasoning-gym, each a game of one question."""

from typing import Any

from gym_trl.envs.external.adapter import Adapter, Played
from gym_trl.errors import ConfigError, MissingDependencyError


class ReasoningGym(Adapter):
    """One question of a reasoning-gym data set; the answer is worth what its scorer gives, 0 to 1.

    ::

        env = gym.make("External/ReasoningGym-v0", dataset="leg_counting")
        env.reset(seed=0)[0]
        'Your task is to count how many legs there are in total when given a list of animals...'

    A seed draws one question; their number has no end. The scorer's own rules hold: an answer that holds the right one
    among other words is often worth a part, and some scorers (of 106 data sets, 18) pay a little for any words at all.
    A scorer that raises has not understood the answer, which is then worth nothing and not a valid action.

    Args:
        dataset: Its name, as ``reasoning_gym.create_dataset`` takes it.
        render_mode: None; there is nothing to draw.
        **config: Of the data set, such as ``min_animals``.

    Raises:
        MissingDependencyError: reasoning-gym is not installed.
        ConfigError: no such data set, or one that does not take ``config``.
    """

    instructions = "Answer with the final answer and nothing else."

    def __init__(self, dataset: str, *, render_mode: None = None, **config: Any) -> None:
        try:
            from reasoning_gym import create_dataset
        except ImportError as error:
            raise MissingDependencyError("External/ReasoningGym-v0", extra="reasoning-gym") from error
        super().__init__()
        self.dataset = dataset
        self._make = create_dataset
        self._config = config
        self._questions: Any = None
        self._entry: Any = None
        try:
            self._make(dataset, seed=1, size=1, **config)
        except (ValueError, TypeError, AssertionError) as error:
            raise ConfigError(f"reasoning-gym cannot make {dataset!r} with {config}: {error}") from error

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._questions = self._make(self.dataset, seed=seed, size=1, **self._config)
        self._entry = self._questions[0]
        return str(self._entry["question"]), {}

    def _play(self, action: str) -> Played:
        valid = True
        try:
            score = float(self._questions.score_answer(action, self._entry))
        except Exception:  # what scorers raise at answers that they cannot read is anything
            score, valid = 0.0, False
        return Played(f"Score: {score:g}", score, terminated=True, success=score >= 1.0, valid=valid)
