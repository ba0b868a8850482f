"""Scores that a model's are compared with: of random play, the blind baseline and perfect play."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from gym_trl.errors import NotTextError
from gym_trl.evaluation.as_trained import CONVERSION, MakeEnv, as_trained, text_env
from gym_trl.evaluation.blind import blind_reference
from gym_trl.evaluation.play import optimum, random_reference
from gym_trl.executors.step import close_env
from gym_trl.kinds import option_types
from gym_trl.options import MARKS, Text, TrainOptions, changed
from gym_trl.random_play import own_random_policy
from gym_trl.registration import make_env
from gym_trl.wrappers.seats import plays_all_seats


def references(options: TrainOptions) -> dict[str, float | None]:
    """Return the scores of random play, of the blind baseline and of perfect play in a training's environment.

    >>> from gym_trl.training.options import choose
    >>> levels = references(choose("TrlEnv/GuessNumber-v0"))
    >>> levels["success_optimum"], levels["success_random"], levels["episodes_random"]
    (1.0, 0.403, 1000)
    >>> levels = references(choose("TrlEnv/GuessNumber-v0", turn_limit=2))
    >>> levels["success_optimum"], levels["success_random"] < 0.4  # the optimum is that of more turns
    (None, True)

    The keys are ``success_`` and ``return_``, each with ``random``, ``blind`` and ``optimum``, and ``episodes_`` with
    the first two: the number of episodes of the sample. An unknown score is ``None``.
    """
    levels = options.curriculum
    # Evaluations have the last level.
    own = partial(make_env, options.env, **{**options.env_kwargs, **(levels[-1] if levels else {})})
    make = _maker(own, {name: value for name, value in changed(options).items() if name in option_types(Text)})
    task = make()
    best, has_random, for_all = optimum(task), own_random_policy(task) is not None, plays_all_seats(task)
    close_env(task)
    # With several seats to play, what a policy is worth depends on the other ones.
    chance = None if for_all else random_reference(lambda name: text_env(make), options.env)
    # If nobody can play it in the environment's own words, no sequence of them can be tried either.
    unknown = for_all or (has_random and chance is None)
    samples = {"random": chance, "blind": None if unknown else blind_reference(make)}
    return {
        "success_optimum": best.success,
        "return_optimum": best.mean_return,
        **{f"success_{name}": None if one is None else one.success.mean for name, one in samples.items()},
        **{f"return_{name}": None if one is None else one.mean_return.mean for name, one in samples.items()},
        **{f"episodes_{name}": None if one is None else one.episodes for name, one in samples.items()},
    }


def _maker(own: MakeEnv, chosen: Mapping[str, Any]) -> MakeEnv:
    """Return what makes the training's task, in the environment's own words unless only the user's make it text."""
    task = as_trained(own, {name: value for name, value in chosen.items() if name not in CONVERSION})
    try:
        close_env(text_env(task))
    except NotTextError:
        return as_trained(own, {name: value for name, value in chosen.items() if name not in MARKS})
    return task
