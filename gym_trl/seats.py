"""Episodes of a game of several seats: what a step pays to each, and how those end whose seat did not act last."""

from collections.abc import Sequence
from dataclasses import replace

from gym_trl.episode import Episode, reason_of
from gym_trl.types import EnvFailure, StepResult, StopReason


def pay(episodes: Sequence[Episode], mover: Episode, result: StepResult) -> None:
    """Note what a step of a game pays to each seat, and stop the episode of the seat that acted if the game is over."""
    mover.pay(result)
    for other, payoff in zip(episodes, result.info.get("payoffs", ()), strict=False):
        if other is not mover:  # its own payoff is the reward
            other.earn(payoff)
    if result.terminated or result.truncated:
        _end(mover, result, result.observation)


def leave(episode: Episode, ended: Episode, result: StepResult | EnvFailure) -> None:
    """Stop the episode of a seat because that of another has ended."""
    over = isinstance(result, StepResult) and (result.terminated or result.truncated)
    if ended.stop_reason is not None and not ended.stop_reason.scored:
        episode.stop(ended.stop_reason, ended.error)
    elif not episode.turns:
        episode.stop(StopReason.UNPLAYED)
    elif over and ended.stop_reason is not StopReason.INVALID:
        assert isinstance(result, StepResult)
        _end(episode, result, "", charged=result.truncated)  # the environment has settled with the seat that acted
    else:
        whole = ended.stop_reason is StopReason.TURN_LIMIT
        episode.stop(StopReason.TURN_LIMIT if whole else StopReason.FORFEIT, ended.error)


def _end(episode: Episode, result: StepResult, text: str, *, charged: bool = False) -> None:
    """Show a seat the end of its game, by a text of its own if there is one, and stop its episode."""
    info = {name: value for name, value in result.info.items() if name != "success"}
    successes, texts = info.get("successes"), info.get("observations", {})
    if successes is not None:
        info["success"] = bool(successes[episode.seat or 0])
    episode.show(replace(result, observation=texts.get(episode.seat, text), info=info))
    episode.stop(reason_of(result), charged=charged)
