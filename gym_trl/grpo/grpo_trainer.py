"""TRL's ``GRPOTrainer`` for the episodes of a specification."""

from gym_trl.errors import needs
from gym_trl.grpo.trainer import GymTraining

with needs("train", "GymGRPOTrainer"):
    from trl import GRPOTrainer


class GymGRPOTrainer(GymTraining, GRPOTrainer):  # type: ignore[misc]  # TRL is untyped
    """``GRPOTrainer`` that takes datasets, rollouts and rewards from a ``GymSpec``.

    ::

        spec = GymSpec("TrlEnv/Wordle-v0", num_tasks=1_000)
        GymGRPOTrainer(model="Qwen/Qwen3-0.6B", args=GRPOConfig(...), spec=spec).train()

    ``train_dataset``, ``eval_dataset``, ``rollout_func``, ``reward_funcs`` and all other arguments of ``GRPOTrainer``
    may be given as well. With ``environment_factory=spec.environment_factory`` the model calls tools in TRL's own loop.
    Settings that do not go with the specification (credit per turn, a history) are refused before anything is
    played. The stock class works as well, but for these three features: its first rollout gives it this class
    (``gym_trl.adopt``).

    Raises:
        ConfigError: A setting of the trainer does not go with the specification; the message says what to change.
        MissingDependencyError: TRL is not installed.
    """
