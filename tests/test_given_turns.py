import gymnasium as gym
import pytest

from gym_trl.envspec import EnvSpec
from gym_trl.errors import ConfigError
from gym_trl.executors import InlinePool
from gym_trl.grpo.credit.columns import turn_row
from gym_trl.options import History
from gym_trl.rollout import Limits, run_episodes
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.text_player import play
from gym_trl.testing import ByteChat, ScriptedEngine
from gym_trl.types import EpisodeResult, Request, StopReason, Task

TASK = Task("TrlEnv/GuessNumber-v0", seed=3)
ACTIONS = ["25", "38", "44", "41"]
CHAT = ByteChat()


def played(opening: list[str], action: str = "41", **limits: int) -> tuple[EpisodeResult, list[Request]]:
    requests: list[Request] = []

    def answer(request: Request) -> list[int]:
        requests.append(request)
        return CHAT.say(action)

    episode = Episode(TASK, chat=CHAT, limits=Limits(tokens_per_turn=9, **limits), opening=opening)
    with InlinePool(EnvSpec(TASK.env_id, action_format="plain", state_key="auto").make) as pool:
        [result] = run_episodes([episode], pool=pool, engine=ScriptedEngine(answer))
    return result, requests


@pytest.mark.parametrize("given", range(4))
def test_an_episode_with_given_turns_is_the_episode_of_all_its_actions(given: int) -> None:
    result, requests = played(ACTIONS[:given], action=ACTIONS[given])
    rest = iter(ACTIONS)
    whole = play(gym.make(TASK.env_id), TASK, lambda env: lambda observation: next(rest, "41"))
    if given == 3:
        assert (result.stop_reason, result.episode_return) == (whole.stop_reason, whole.episode_return)
        assert [turn.answer.text for turn in result.turns] == [turn.answer.text for turn in whole.turns]
        assert [turn.observation for turn in result.turns] == [turn.observation for turn in whole.turns]
    assert result.given_turns == given
    trace = result.trace
    assert trace.prompt_ids == requests[0].prompt_ids == CHAT.open(result.messages[: 2 * given + 1])
    assert sum(trace.mask) == sum(turn.stop - turn.start for turn in result.turns[given:])
    assert (trace.prompt_ids + trace.completion_ids)[: len(requests[-1].prompt_ids)] == requests[-1].prompt_ids


def test_credit_per_turn_is_that_of_the_models_turns() -> None:
    result, _ = played(ACTIONS[:3])
    row = turn_row(result)
    row.check("row")
    assert row.turn_rewards == [1.0]
    assert row.turn_spans == [(0, 3)]
    assert list(row.turn_keys) == list(result.state_keys[3:])


def test_an_episode_that_ends_within_given_turns_is_unscored() -> None:
    result, requests = played([*ACTIONS, "1"])
    assert (result.stop_reason, result.scored, requests) == (StopReason.ENV_ERROR, False, [])
    assert result.error == "the turns that were given cannot be played: its last step ended the episode"


def test_an_episode_without_room_for_a_turn_of_the_model_is_unscored() -> None:
    result, requests = played(ACTIONS[:2], context=20)
    assert (result.stop_reason, result.scored, requests) == (StopReason.CONTEXT_OVERFLOW, False, [])


def test_turns_are_not_given_to_an_episode_with_a_history() -> None:
    with pytest.raises(ConfigError, match="cannot be given to an episode with a history"):
        Episode(TASK, chat=CHAT, limits=Limits(9), history=History(last=2), opening=["25"])
