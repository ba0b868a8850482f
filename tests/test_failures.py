"""One list of failures (``gym_trl.testing.faults``), through all that plays: one result per episode or per check."""

import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
from support.command_line import error, gym_trl_

from gym_trl.env_checker.checks import CHECKS
from gym_trl.env_checker.inspector import Inspector
from gym_trl.envspec import EnvSpec
from gym_trl.errors import ConfigError, PolicyError, caused_by_model, described, safe_str
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.evaluation.play import play_tasks
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.process import ProcessPool
from gym_trl.executors.protocol import EnvFactory
from gym_trl.executors.thread import ThreadPool
from gym_trl.policies.protocol import TextPolicy
from gym_trl.registration import make_env
from gym_trl.report import PROBLEM
from gym_trl.testing.faults import EXCEPTIONS, MALFORMED, FailingEnv
from gym_trl.types import EnvFailure, StepResult, StopReason, Task
from gym_trl.vector import TextVectorEnv
from gym_trl.wrappers.state_key import StateKey
from gym_trl.wrappers.tools import Tools

ATTRIBUTES = ["instructions", "action_space", "observation_space", "declares_success"]
LATER = [("reset", one) for one in (*EXCEPTIONS, *MALFORMED) if not one.startswith("reward")]
LATER += [("step", one) for one in (*EXCEPTIONS, *MALFORMED)]
"""Failures in one of three episodes."""
BEFORE = [(place, one) for place in ("make", *ATTRIBUTES) for one in EXCEPTIONS]
"""Failures of all episodes."""
HARMLESS = [(place, one) for place in ("close", "render", "optimal_return") for one in EXCEPTIONS]
"""Failures that cost no episode."""
NAME = "gym_trl.testing.faults:FailingEnv"


@pytest.fixture(autouse=True)
def quiet():
    """Warnings about closing are the business of other tests."""
    before, gym.logger.min_level = gym.logger.min_level, gym.logger.ERROR
    yield
    gym.logger.min_level = before


def named(name):
    """Make an environment whose id names where and how it fails."""
    place, _, failure = name.partition("/")
    return FailingEnv(place, failure, hang_s=2.0)


def blamed(failure):
    """Return whether the model is blamed for an exception of a step."""
    return failure in EXCEPTIONS and caused_by_model(EXCEPTIONS[failure]())


def fails(seed):
    return seed % 3 == 2


# ---------------------------------------------------------------------------------------------------------------------
# Executors
# ---------------------------------------------------------------------------------------------------------------------

POOLS: dict[str, Callable[[EnvFactory], Any]] = {
    "inline": InlinePool,
    "thread": partial(ThreadPool, workers=2, step_timeout=0.5, reset_timeout=0.5),
    "process": partial(ProcessPool, workers=2, step_timeout=0.5, reset_timeout=0.5),
}


@pytest.fixture(scope="module", params=POOLS)
def pool(request):
    with POOLS[request.param](named) as pool:
        yield pool


def results_of(pool, place, failure):
    """Return the last result of six episodes with one step each."""
    keys = [f"{place}/{failure}/{seed}" for seed in range(6)]
    last: dict[str, StepResult | EnvFailure] = {}

    def collect(expected):
        found: dict[str, StepResult | EnvFailure] = {}
        while len(found) < len(expected):
            for key, result in pool.collect(block=True):
                assert key not in found
                found[key] = result
        assert sorted(found) == sorted(expected)
        last.update(found)

    for seed, key in enumerate(keys):
        pool.reset(key, Task(f"{place}/{failure}", seed))
    collect(keys)
    alive = [key for key in keys if isinstance(last[key], StepResult)]
    for key in alive:
        pool.step(key, "on")
    collect(alive)
    for key in keys:
        pool.release(key)
    return [last[key] for key in keys]


@pytest.mark.processes
def test_a_failure_is_the_result_of_its_episode_in_every_executor(pool):
    for place, failure in LATER:
        for seed, result in enumerate(results_of(pool, place, failure)):
            assert isinstance(result, EnvFailure) == fails(seed), (place, failure, seed)
            if not fails(seed):
                continue
            by_model = place == "step" and blamed(failure)
            assert result.reason is (StopReason.CRASHED if by_model else StopReason.ENV_ERROR), (place, failure)
            if failure in EXCEPTIONS:
                assert described(EXCEPTIONS[failure]()) in result.error


@pytest.mark.processes
def test_an_environment_that_cannot_be_made_fails_every_episode(pool):
    for place, failure in BEFORE:
        if place in ("make", "instructions", "declares_success"):  # nothing else is read here
            assert all(isinstance(one, EnvFailure) for one in results_of(pool, place, failure)), (place, failure)


@pytest.mark.processes
def test_exceptions_of_close_and_render_cost_no_episode():
    for make in POOLS.values():
        with make(named) as pool:
            for place, failure in HARMLESS:
                assert all(isinstance(one, StepResult) for one in results_of(pool, place, failure)), (place, failure)


@pytest.mark.processes
def test_an_exit_at_a_reset_is_the_result_of_its_own_episode():
    with POOLS["process"](named) as pool:
        results = results_of(pool, "reset", "exit")
    assert [isinstance(one, EnvFailure) for one in results] == [fails(seed) for seed in range(6)]
    assert {one.reason for one in results if isinstance(one, EnvFailure)} == {StopReason.ENV_ERROR}


# ---------------------------------------------------------------------------------------------------------------------
# Evaluation
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", EXCEPTIONS)
def test_an_evaluation_has_a_result_per_episode_or_refuses_the_environment_by_name(failure):
    for place in ("reset", "step", "close", "render"):
        [row] = evaluate(partial(FailingEnv, place, failure), ["random"], episodes=6).rows
        lost = place == "reset" or (place == "step" and not blamed(failure))
        assert (row.episodes, row.unscored) == ((4, 2) if lost else (6, 0)), place
    for place in ("make", *ATTRIBUTES):
        with pytest.raises(ConfigError, match="FailingEnv") as refused:
            evaluate(partial(FailingEnv, place, failure), ["random"], episodes=2)
        assert described(EXCEPTIONS[failure]()).partition(": ")[0] in str(refused.value)


def tasks(number):
    return [Task("Failing", seed) for seed in range(number)]


@pytest.mark.parametrize("failure", EXCEPTIONS)
def test_a_policy_that_fails_stops_the_evaluation_with_its_name(failure):
    def raises(observation):
        raise EXCEPTIONS[failure]()

    for policy in (TextPolicy("p", lambda env, seed: raises), TextPolicy("p", lambda env, seed: raises(""))):
        if failure == "CancelledError":  # as of a client whose connection was given up
            [row] = evaluate(partial(FailingEnv, "nowhere"), [policy], episodes=2).rows
            assert (row.episodes, row.unscored) == (0, 2)
            continue
        with pytest.raises(PolicyError, match=r"'p' raised [\s\S]*test_failures.py, line"):
            evaluate(partial(FailingEnv, "nowhere"), [policy], episodes=2)


# ---------------------------------------------------------------------------------------------------------------------
# Checks
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["make", "reset", "step", "close", *ATTRIBUTES])
def test_each_check_has_a_finding_whatever_the_environment_raises(place):
    for failure in ("SystemExit", "leaving", "surrogate"):
        inspector = Inspector(partial(FailingEnv, place, failure), 2, search_steps=20, search_seconds=0.2)
        found = [inspector.look_at(promise) for promise in CHECKS if promise != "processes"]
        assert all(isinstance(one.got, str) for one in found)
        assert any(one.verdict == PROBLEM for one in found), failure


# ---------------------------------------------------------------------------------------------------------------------
# Others
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("executor", ["inline", "thread", "process"])
def test_a_vector_environment_reports_a_failure_and_goes_on(executor):
    makers = [partial(FailingEnv, "nowhere"), *(partial(FailingEnv, "step", one, share=1) for one in EXCEPTIONS)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vector = TextVectorEnv(makers, executor=executor, workers=2)
    try:
        vector.reset(seed=0)
        observations, _, terminated, truncated, infos = vector.step(["on"] * len(makers))
        assert observations[0] == "on"
        assert infos["_error"].tolist() == [False, *(True for _ in EXCEPTIONS)]
        assert (terminated | truncated).tolist() == infos["_error"].tolist()
        assert len(vector.step(["on"] * len(makers))[0]) == len(makers)
    finally:
        vector.close()


@pytest.mark.parametrize("failure", ["SystemExit of 0", "leaving", "surrogate"])
def test_no_command_ends_as_an_environment_wants_it(tmp_path, failure, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--env-kwargs", f"failure={failure}", "--episodes", "4"]
    said = error(gym_trl_("eval", NAME, "--policy", "random", "--env-kwargs", "place=make", *options))
    assert "cannot make" in said
    done = gym_trl_("eval", NAME, "--policy", "random", "--env-kwargs", "place=step", "--out", "out", *options)
    assert done.exit_code == 0
    assert "\nError: " not in f"\n{done.output}"
    assert "An action ended an episode (crashed)" in done.output


@pytest.mark.parametrize("failure", EXCEPTIONS)
def test_an_exception_of_a_tool_is_its_result_and_of_a_state_key_names_it(failure):
    def lever(number: int) -> str:
        """Pull a lever.

        Args:
            number: Its number.
        """
        raise EXCEPTIONS[failure]()

    env = Tools(FailingEnv("nowhere"), [lever])
    env.reset(seed=0)
    said = env.step('<tool_call>{"name": "lever", "arguments": {"number": 1}}</tool_call>')[0]
    assert described(EXCEPTIONS[failure]()) in said

    def key(env):
        raise EXCEPTIONS[failure]()

    with pytest.raises(ConfigError, match=r"state_key for .* raised"):
        StateKey(FailingEnv("nowhere"), key).reset(seed=0)


@pytest.mark.parametrize("raised", ["SystemExit(0)", "KeyError('x')", "GeneratorExit"])
def test_a_module_that_ends_the_program_when_it_is_imported_is_refused(tmp_path, monkeypatch, raised):
    (tmp_path / "leaves_at_once.py").write_text(f"raise {raised}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="importing leaves_at_once raised"):
        make_env("leaves_at_once:Env")
    sys.modules.pop("leaves_at_once", None)


def test_an_interrupt_passes_through_all_that_plays():
    class Interrupted(FailingEnv):
        def step(self, action):
            raise KeyboardInterrupt

    for play in (
        lambda: evaluate(Interrupted, ["random"], episodes=2),
        lambda: play_tasks(lambda _: Interrupted(), tasks(2), lambda env: lambda observation: "on"),
        lambda: Inspector(Interrupted, 2).look_at("step"),
    ):
        with pytest.raises(KeyboardInterrupt):
            play()


@pytest.mark.parametrize("failure", EXCEPTIONS)
def test_every_exception_can_be_described(failure):
    raised = EXCEPTIONS[failure]()
    assert described(raised).startswith(type(raised).__name__)
    assert isinstance(safe_str(raised), str)


def test_a_generator_that_is_left_in_the_middle_closes_quietly():
    made: Any = EnvSpec(FailingEnv).checked(NAME)
    next(made.gen)
    made.gen.close()  # pytest takes what cannot be raised for an error
