"""Episodes and the loop that plays them."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.rollout.config import RolloutConfig as RolloutConfig
    from gym_trl.rollout.cutoff import Cutoff as Cutoff
    from gym_trl.rollout.episode import Episode as Episode
    from gym_trl.rollout.limits import Limits as Limits
    from gym_trl.rollout.loop import run_episodes as run_episodes, stream_episodes as stream_episodes

_MODULES = {
    "RolloutConfig": "gym_trl.rollout.config",
    "Cutoff": "gym_trl.rollout.cutoff",
    "Limits": "gym_trl.rollout.limits",
    "Episode": "gym_trl.rollout.episode",
    "run_episodes": "gym_trl.rollout.loop",
    "stream_episodes": "gym_trl.rollout.loop",
}

__all__ = list(_MODULES)
__getattr__, __dir__ = exports(__name__, _MODULES)
