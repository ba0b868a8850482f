# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-any-generics, allow-incomplete-defs
"""The small form of ``benchmarks/bench_faults.py``: real processes, a server that is killed, and nothing is lost."""

import json
import sys

import bench_faults
import gymnasium as gym
import pytest
import warm

from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.errors import ConfigError
from gym_trl.executors.inline import InlinePool
from gym_trl.rollout.loop import run_episodes
from gym_trl.testing import FaultyEnv

ECHO = "TrlEnv/Echo-v0"


@pytest.mark.full
@pytest.mark.processes
def test_nothing_is_lost_whatever_environments_and_servers_do(capsys):
    setting = bench_faults.Setting(
        240, group_size=2, alive=8, step_s=0.01, model_s=0.01, step_timeout=1.5, away_s=0.3, repeatable=True
    )
    outcome = bench_faults.play(setting, bench_faults.FAULTS, restarts=1)
    with InlinePool(lambda env_id: gym.make(env_id, turns=4)) as pool:
        engine = ScriptedEngine(lambda request: bench_faults.answer(request.seed))
        faultless = run_episodes(bench_faults.games(setting), pool=pool, engine=engine)
    found = bench_faults.counts(setting, outcome, faultless)
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


@pytest.mark.full
@pytest.mark.trl
@pytest.mark.processes
def test_a_trainer_goes_on_through_faults_and_counts_them():
    seed, steps, episodes, workers = 0, 4, 32, 4
    words = json.dumps([{"disconnects": 0.1, "dies": 0.02, "garbage": 0.05}, seed, steps, episodes, workers])
    done = warm.run(bench_faults.__file__, "--call", "learn", words, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    learnt = json.loads(done.stdout.splitlines()[-1])
    assert learnt["steps"] == steps
    assert 0.1 < learnt["unscored"] < 0.7


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
