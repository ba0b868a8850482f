"""Existing trainers, which are given the class of this library before, or in the middle of, their first batch."""

import copyreg
from abc import ABCMeta
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from gym_trl.errors import ConfigError
from gym_trl.grpo.attach import Attachment
from gym_trl.grpo.trainer import GymTraining, check_pair, checked_spec, new_attachment, trainer_parts
from gym_trl.grpo.trainer_parts import TrainerPart

if TYPE_CHECKING:
    from gym_trl.grpo.spec import GymSpec


def adopt(trainer: Any, spec: "GymSpec | None" = None) -> Any:
    """Give an existing trainer the class ``GymGRPOTrainer``, or a subclass of its own one, before its first batch.

    ::

        trainer = adopt(SomebodysTrainer(..., rollout_func=spec.rollout_func))

    Args:
        trainer: A ``GRPOTrainer`` or an object of a subclass; one that has the class already is left as it is.
        spec: Specification, where ``rollout_func`` is a function of your own that calls ``spec.rollout_func``.

    Returns:
        The trainer.

    Raises:
        ConfigError: It is another trainer, or one of its settings does not go with the specification.
    """
    kind: Any = type(trainer)
    if spec is not None:
        spec = checked_spec(spec)
    if isinstance(trainer, GymTraining):
        if spec is not None and trainer.rollout_func is not None:
            check_pair(trainer.rollout_func, spec)
        if spec is not None and not trainer.gym_trl.parts:
            trainer.gym_trl.take(trainer_parts(spec.rollout_func.parts))
        return trainer
    trainer.__class__ = _adopting(kind)
    try:
        new_attachment(trainer, spec)
    except BaseException:
        trainer.__class__ = kind
        raise
    return trainer


@cache
def _adopting(kind: type) -> type:
    """Return the class of adopted trainers of a class."""
    from trl import GRPOTrainer

    if not issubclass(kind, GRPOTrainer):
        raise ConfigError(f"expected a GRPOTrainer or an object of a subclass, got {kind.__name__}")
    if kind is GRPOTrainer:
        from gym_trl.grpo.grpo_trainer import GymGRPOTrainer

        return GymGRPOTrainer
    return _Adopted(kind.__name__, (GymTraining, kind), {"__module__": kind.__module__})


class _Adopted(ABCMeta):
    """Type of the classes that ``adopt`` makes, which pickle cannot find by name."""


def _reduced(kind: Any) -> tuple[Any, ...]:
    return _adopting, kind.__bases__[1:]


copyreg.pickle(_Adopted, _reduced)


def attach(trainer: Any, parts: Sequence[TrainerPart] = ()) -> Attachment:
    """Return the attachment of a trainer, which gets this library's class at the first call.

    Args:
        trainer: A ``GRPOTrainer`` or an object of a subclass.
        parts: Parts that a rollout needs of it.

    Raises:
        ConfigError: Parts would be too late for the batch that the trainer makes.
    """
    if not isinstance(trainer, GymTraining):
        if parts:
            raise _too_late(parts[0])
        adopt(trainer)
    attachment: Attachment = trainer.gym_trl
    for part in parts:
        if not any(part.same_as(own) for own in attachment.parts):
            raise _too_late(part)
    return attachment


def _too_late(part: TrainerPart) -> ConfigError:
    name = part.name or type(part).__name__
    return ConfigError(
        f"{name} changes the rows of a batch, and this trainer did not know of it before the first: make it with "
        "GymGRPOTrainer(..., spec=spec), or call gym_trl.adopt(trainer, spec) before trainer.train()"
    )
