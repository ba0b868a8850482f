"""Episodes and the loop that plays them."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.options import Cutoff as Cutoff, History as History
    from gym_trl.rollout.config import RolloutConfig as RolloutConfig
    from gym_trl.rollout.episode import Episode as Episode
    from gym_trl.rollout.game import Game as Game, run_games as run_games
    from gym_trl.rollout.limits import Limits as Limits
    from gym_trl.rollout.log import EpisodeLog as EpisodeLog
    from gym_trl.rollout.loop import run_episodes as run_episodes
    from gym_trl.rollout.text_player import TextPlayer as TextPlayer, play as play

__getattr__, __dir__ = exports(__name__)
