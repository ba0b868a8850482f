"""Real processes that fail, a server that is killed, and nothing is lost."""

import sys

import gymnasium as gym
import pytest
from support import fault_runs

from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.errors import ConfigError
from gym_trl.executors.inline import InlinePool
from gym_trl.rollout.loop import run_episodes
from gym_trl.testing import FaultyEnv

ECHO = "TrlEnv/Echo-v0"


@pytest.mark.full
@pytest.mark.processes
def test_nothing_is_lost_whatever_environments_and_servers_do(capsys):
    setting = fault_runs.Setting(
        240, group_size=2, alive=8, step_s=0.01, model_s=0.01, step_timeout=1.5, away_s=0.3, repeatable=True
    )
    outcome = fault_runs.play(setting, fault_runs.FAULTS, restarts=1)
    with InlinePool(lambda env_id: gym.make(env_id, turns=4)) as pool:
        engine = ScriptedEngine(lambda request: fault_runs.answer(request.seed))
        faultless = run_episodes(fault_runs.games(setting), pool=pool, engine=engine)
    found = fault_runs.counts(setting, outcome, faultless)
    with capsys.disabled():
        sys.stdout.write(f"\n{found}, {outcome.wall_s:.1f} s, server: {outcome.restarts}\n")
    assert found["episodes"] == 240
    wrong = ("lost", "finished twice", "out of order", "groups that do not show one game")
    others = ("scored otherwise than without faults", "lost with another episode's process")
    assert {name: found[name] for name in (*wrong, *others)} == dict.fromkeys((*wrong, *others), 0)
    happened = ("raised", "hung", "killed their process", "returned nonsense")
    assert all(found[name] > 0 for name in happened)
    ended = [*happened, "without an answer of the server"]
    assert found["scored"] + sum(found[name] for name in ended) == 240
    assert found["scored"] > 120
    [restart] = outcome.restarts
    assert 0 <= restart["served_after_s"] < 10  # a pause between two tries is 6.25 s at most


class TestFaultyEnv:
    def test_has_the_same_faults_for_the_same_seed(self):
        assert self.fates(FaultyEnv(gym.make(ECHO), raises=0.5)) == self.fates(FaultyEnv(gym.make(ECHO), raises=0.5))

    def test_has_faults_of_its_own_where_they_need_not_be_repeated(self):
        apart = [self.fates(FaultyEnv(gym.make(ECHO), raises=0.5, repeatable=False)) for _ in range(2)]
        assert apart[0] != apart[1]

    def fates(self, env):
        found = []
        for seed in range(64):
            env.reset(seed=seed)
            try:
                env.step("a")
            except RuntimeError:
                found.append(seed)
        return found

    def test_refuses_what_is_no_probability(self):
        with pytest.raises(ConfigError, match="raises must be a probability"):
            FaultyEnv(gym.make(ECHO), raises=2.0)
