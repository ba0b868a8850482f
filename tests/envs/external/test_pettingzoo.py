"""Games of PettingZoo of all kinds keep the protocol of seats."""

import random
from typing import Any

import gymnasium as gym
import pytest

from gym_trl.errors import ConfigError, NotTextError
from gym_trl.wrappers import Seats

pettingzoo = pytest.importorskip("pettingzoo", reason="PettingZoo is not installed")
pytestmark = pytest.mark.slow


class Countdown(pettingzoo.AECEnv):  # type: ignore[name-defined]
    """Three take one or two from ten; the last one pays the others, who leaves five is out; the first move pays c."""

    metadata = {"name": "countdown_v0", "render_modes": []}  # noqa: RUF012
    possible_agents = ["a", "b", "c"]  # noqa: RUF012
    observation_space = staticmethod(lambda agent: gym.spaces.Discrete(11))
    action_space = staticmethod(lambda agent: gym.spaces.Discrete(2, start=1))
    observe = lambda self, agent: self.left  # noqa: E731

    def reset(self, seed: Any = None, options: Any = None) -> None:
        self.agents, self.left, self.agent_selection = list(self.possible_agents), 10, "a"
        self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0), dict.fromkeys(self.agents, 0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}

    def step(self, action: Any) -> None:
        player = self.agent_selection
        if self.terminations[player]:
            self._was_dead_step(action)
            return
        self._clear_rewards()
        if self.left == 10:
            self.rewards["c"] += 5
        self.left = max(0, self.left - action)
        if self.left == 0:
            self.rewards = {one: 1 if one != player else -2 for one in self.agents}
            self.terminations = dict.fromkeys(self.agents, True)
        self.terminations[player] |= self.left == 5
        self._accumulate_rewards()
        self.agent_selection = self.agents[(self.agents.index(player) + 1) % len(self.agents)]
        self._deads_step_first()


def seats(game: Any, **settings: Any) -> Any:
    return Seats(gym.make("External/PettingZoo-v0", game=game, **settings))


@pytest.mark.parametrize("game", [Countdown, "classic/tictactoe-v3", "classic/connect_four-v3", "classic/rps-v2"])
def test_random_play_of_all_seats_pays_them_what_the_game_pays(game: Any) -> None:
    env = seats(game)
    for seed in range(30):
        rng, info, over, out = random.Random(seed), env.reset(seed=seed)[1], False, set[int]()
        paid = [0.0] * env.num_seats
        while not over:
            assert info["to_move"] not in out
            observation, _, terminated, truncated, info = env.step(rng.choice(info["admissible_actions"]))
            paid, over = [sum(pair) for pair in zip(paid, info["payoffs"], strict=True)], terminated or truncated
            out |= {info["player"]} if observation.endswith("\n5") and game is Countdown else set()
        assert paid == list(env.unwrapped._paid.values())
        assert all(info["observations"][seat].endswith(f"You got {one:g}.") for seat, one in enumerate(paid))
        assert info["successes"] == tuple(one == max(paid) > min(paid) for one in paid)


@pytest.mark.parametrize("game", ["classic/rps-v2", "pettingzoo.classic.rps.rps:parallel_env"])
def test_choices_at_the_same_time_are_seen_by_nobody_before_all_are_made(game: str) -> None:
    for mine, payoffs in {"0": (0, 0), "1": (1, -1), "2": (-1, 1)}.items():
        env = seats(game, max_cycles=2)
        shown = [env.reset(seed=0)[0], env.step(mine)[0]]
        after, _, _, _, info = env.step("0")
        assert [*shown, after] == ["You are player_0.\n3", "You are player_1.\n3", "You are player_0.\n0"]
        assert info["payoffs"] == payoffs


def test_what_cannot_be_shown_asks_for_a_text_of_the_users() -> None:
    with pytest.raises(NotTextError):
        seats("classic/go-v5", board_size=5)
    env = seats("classic/go-v5", board_size=5, observe=lambda seen: f"{int(seen['observation'][..., :2].sum())} stones")
    assert env.reset(seed=0)[0] == "You are black_0.\n0 stones"
    assert env.step("3")[0] == "You are white_0.\n1 stones"


@pytest.mark.parametrize("settings", [{"game": int}, {"game": "pettingzoo:nonesuch"}, {"game": Countdown, "rounds": 3}])
def test_a_game_that_cannot_be_made_is_said(settings: Any) -> None:
    with pytest.raises(ConfigError):
        seats(**settings)
