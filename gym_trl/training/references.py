"""Scores that a model's are compared with: of random play, the blind baseline and perfect play."""

from gym_trl.evaluation.blind import blind_reference
from gym_trl.evaluation.play import optimum, random_reference
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import close_env
from gym_trl.options import TrainOptions
from gym_trl.registration import make_env
from gym_trl.wrappers.declare_success import declare_success


def references(options: TrainOptions) -> dict[str, float | None]:
    """Return the scores of random play, of the blind baseline and of perfect play.

    >>> from gym_trl.training.options import choose
    >>> found = references(choose("TrlEnv/GuessNumber-v0"))
    >>> found["success_optimum"], found["success_random"], found["episodes_random"]
    (1.0, 0.403, 1000)

    The keys are ``success_`` and ``return_``, each with ``random``, ``blind`` and ``optimum``, and ``episodes_`` with
    the first two: the number of episodes of the sample. An unknown score is ``None``.
    """

    def make(name: str) -> TextEnvironment:
        return declare_success(make_env(name, **options.env_kwargs), options.success)

    samples = {
        "random": random_reference(make, options.env, success_replaced=options.success is not None),
        "blind": blind_reference(lambda: make(options.env)),
    }
    env = make(options.env)
    best = optimum(env)
    close_env(env)
    return {
        "success_optimum": best.success,
        "return_optimum": best.mean_return,
        **{f"success_{name}": None if one is None else one.success.mean for name, one in samples.items()},
        **{f"return_{name}": None if one is None else one.mean_return.mean for name, one in samples.items()},
        **{f"episodes_{name}": None if one is None else one.episodes for name, one in samples.items()},
    }
