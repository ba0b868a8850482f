"""Scores that a model's are compared with: of random play, the blind baseline and perfect play."""

from functools import partial

from gym_trl.evaluation.as_trained import as_trained, text_env
from gym_trl.evaluation.blind import blind_reference
from gym_trl.evaluation.play import optimum, random_reference
from gym_trl.executors.step import close_env
from gym_trl.kinds import option_types
from gym_trl.options import Text, TrainOptions, changed, with_role
from gym_trl.registration import make_env
from gym_trl.wrappers.traits import baselines_of


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
    own = partial(make_env, options.env, **options.env_kwargs)
    # The policies write actions, not responses, so they need no marks.
    names = set(option_types(Text)) - with_role("marks")
    make = as_trained(own, {name: value for name, value in changed(options).items() if name in names})
    env = own()
    sequences = [one.actions for one in baselines_of(env, "blind_baselines").values()]
    close_env(env)
    samples = {
        "random": random_reference(lambda name: text_env(make), options.env),
        "blind": blind_reference(make, extra=sequences),
    }
    env = make()
    best = optimum(env)
    close_env(env)
    return {
        "success_optimum": best.success,
        "return_optimum": best.mean_return,
        **{f"success_{name}": None if one is None else one.success.mean for name, one in samples.items()},
        **{f"return_{name}": None if one is None else one.mean_return.mean for name, one in samples.items()},
        **{f"episodes_{name}": None if one is None else one.episodes for name, one in samples.items()},
    }
