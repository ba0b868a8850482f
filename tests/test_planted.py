# mypy: disable-error-code="union-attr, assignment"
"""Law 23: each check finds its planted fault over all kinds of spaces, and is silent about a sound environment."""

import json
import warnings
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, strategies as st
from support import planted, sound_spaces, sound_text
from support.command_line import run_command_line
from support.lanes import examples

from gym_trl.cli.flags import words_of
from gym_trl.env_checker.card.card import CARD_CHECKS
from gym_trl.env_checker.card.evidence import Evidence
from gym_trl.env_checker.card.plays import Plays
from gym_trl.env_checker.checks import CHECKS
from gym_trl.env_checker.inspector import Inspector
from gym_trl.envspec import EnvSpec
from gym_trl.evaluation.as_trained import as_trained
from gym_trl.executors.step import begin, take_step
from gym_trl.policies.text_play import play_env
from gym_trl.report import OK, PROBLEM, WARNING, Finding
from gym_trl.spaces import AnyText, sample_allowed
from gym_trl.testing import check_text_env
from gym_trl.types import EnvFailure, StepResult, Task
from gym_trl.wrappers import AdmissibleActions, ParseAction, TurnLimit


def look(make, check, options) -> Finding:
    """Return the finding of a check, in this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if check in CARD_CHECKS:
            with Plays(as_trained(make, options), episodes=60, seconds=5.0) as plays:
                return CARD_CHECKS[check](Evidence(plays, search_steps=1_500, seconds=40.0))
        return Inspector(make, episodes=20, search_steps=1_500, search_seconds=2.0, options=options).look_at(check)


@pytest.mark.parametrize(
    "planted_fault",
    [one for one in planted.PLANTED if one.check != "processes"],
    ids=lambda one: f"{one.check}: {one.fault}",
)
def test_a_planted_fault_is_found_by_its_check(planted_fault) -> None:
    found = look(planted_fault.make, planted_fault.check, planted_fault.options)
    verdict, part = planted.reported(planted_fault)
    assert (found.verdict, found.name) == (verdict, planted_fault.check), found
    assert part in found.got, found
    assert found.fix


def test_every_check_has_a_planted_fault() -> None:
    assert {one.check for one in planted.PLANTED} == CHECKS.keys() | CARD_CHECKS.keys()


@pytest.mark.parametrize("name", sound_spaces.SOUND)
def test_a_sound_environment_passes_every_check_of_validate(name) -> None:
    sound = sound_spaces.SOUND[name]
    inspector = Inspector(sound.make, episodes=20, search_steps=1_500, search_seconds=2.0, options=sound.options)
    found = [inspector.look_at(promise) for promise in CHECKS if promise != "processes"]
    cried = {one.name: one.got for one in found if one.verdict != OK}
    assert cried.keys() == sound.lacks, cried
    assert not [one for one in found if one.verdict == PROBLEM]


def command(name, place, options) -> dict[str, dict[str, str]]:
    """Return the findings that ``gym-trl validate`` or ``gym-trl card`` prints."""
    given = words_of(options)
    few = {
        "validate": ["--episodes", "20", "--search-steps", "1500", "--search-seconds", "3"],
        "card": ["--episodes", "60", "--seconds", "15", "--search-steps", "1500"],
    }[name]
    file = Path(planted.__file__)
    ran = run_command_line([name, f"{file}:Named.{place}", *few, *given, "--json"])
    assert ran.exit_code in (0, 1), ran.output
    return {one["name"]: one for one in json.loads(ran.stdout)["findings"]}


def _some(cases: Iterable[Any]) -> list[Any]:
    """Return parameters of which every twelfth is in the full lane, and the others are in nightly runs."""
    return [
        pytest.param(case, marks=[] if place % 12 == 0 else pytest.mark.nightly) for place, case in enumerate(cases)
    ]


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("number", _some(range(len(planted.PLANTED))))
def test_the_commands_miss_no_planted_fault(number) -> None:
    fault = planted.PLANTED[number]
    found = command("validate" if fault.check in CHECKS else "card", f"fault_{number}", fault.options)
    assert found[fault.check]["verdict"] in (WARNING, PROBLEM), found[fault.check]
    assert found[fault.check]["fix"]


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("name", _some(sound_spaces.SOUND))
def test_the_commands_cry_at_no_sound_environment(name) -> None:
    sound = sound_spaces.SOUND[name]
    place = f"sound_{list(sound_spaces.SOUND).index(name)}"
    found = command("validate", place, sound.options)
    assert {one for one, it in found.items() if it["verdict"] != OK} == sound.lacks, found
    found = command("card", place, sound.options)
    assert not {one: it["got"] for one, it in found.items() if it["verdict"] == PROBLEM}
    assert {one for one, it in found.items() if it["verdict"] == WARNING and one in CARD_CHECKS} <= sound.known_to_cards


KINDS = [np.int8, np.uint8, np.int64, np.float32, bool, list]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_mask_of_any_type_is_no_fault_of_the_environment(kind) -> None:
    inspector = Inspector(sound_spaces.masked(kind), episodes=5, search_steps=0)
    for promise in ("reset", "step", "spaces", "success", "info", "invalid actions", "end"):
        found = inspector.look_at(promise)
        assert found.verdict == OK, found


@examples(100)
@given(
    space=st.one_of(
        st.builds(spaces.Discrete, st.integers(1, 6), start=st.integers(-3, 3)),
        st.lists(st.integers(1, 4), min_size=1, max_size=3).map(spaces.MultiDiscrete),
    ),
    kind=st.sampled_from(KINDS),
    data=st.data(),
)
def test_a_sample_is_allowed_by_a_mask_of_any_type(space, kind, data) -> None:
    sizes = [int(space.n)] if isinstance(space, spaces.Discrete) else space.nvec.tolist()
    some = [data.draw(st.lists(st.booleans(), min_size=n, max_size=n).filter(any)) for n in sizes]
    flat = np.array([value for part in some for value in part])
    sample = sample_allowed(space, flat.tolist() if kind is list else flat.astype(kind))
    start = int(space.start) if isinstance(space, spaces.Discrete) else 0
    assert all(part[int(place) - start] for part, place in zip(some, np.atleast_1d(sample), strict=True))


class Says(gym.Env):
    """Returns what it is given as its observations."""

    action_space = AnyText()
    instructions = "Say anything."

    def __init__(self, space, first, then):
        self.observation_space, self.first, self.then = space, first, then

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.first, {"admissible_actions": ["yes", "no"]}

    def step(self, action):
        return self.then, 1.0, False, False, {"admissible_actions": ["yes", "no"]}


NO_TEXT = st.one_of(st.none(), st.integers(), st.floats(), st.binary(max_size=3), st.lists(st.text(), max_size=2))
SHOWN_BY = [
    {},
    {"turn_limit": 3},
    {"wrappers": [AdmissibleActions]},
    {"wrappers": [partial(TurnLimit, turns=3, announce=True)]},
]


@examples(60)
@given(space=st.sampled_from([AnyText(), spaces.Text(5)]), wrong=NO_TEXT, shown_by=st.sampled_from(SHOWN_BY))
def test_an_observation_that_is_no_text_is_refused_however_it_is_wrapped(space, wrong, shown_by) -> None:
    task = Task("says", 0)
    for first, then in ((wrong, "b"), ("a", wrong)):
        spec = EnvSpec(partial(Says, space, first, then), action_format=None, **shown_by)
        env = spec.make(next(iter(spec.weights)))
        failure = play_env(env, task, lambda env: lambda observation: "yes").error
        assert "the observation must be text, got" in str(failure)
        if first is wrong:
            with pytest.raises(TypeError, match="the observation must be text, got"):
                begin(env, task)
        else:
            begin(env, task)
            failed = take_step(env, "yes")
            assert isinstance(failed, EnvFailure)
            assert "the observation must be text, got" in failed.error
        found = Inspector(partial(Says, space, first, then), episodes=2).look_at("spaces")
        assert found.verdict == PROBLEM


class Shows(Says):
    """Has actions that are numbers, so that it needs a conversion."""

    action_space = spaces.Discrete(2)


def shown(space, first, then):
    spec = EnvSpec(partial(Shows, space, first, then), action_format=None)
    env = spec.make(next(iter(spec.weights)))
    began = begin(env, Task("shows", 0))
    return [began, *(take_step(env, "1") for _ in range(3))]


NUMBERS = st.one_of(
    st.builds(spaces.Discrete, st.integers(1, 5)),
    st.builds(spaces.Box, st.just(-1), st.just(1), st.sampled_from([(), (2,), (2, 2)])),
    st.builds(lambda high: spaces.Box(0, high, (2,), np.int64), st.integers(1, 9)),
    st.builds(spaces.MultiBinary, st.integers(1, 3)),
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(spaces.MultiDiscrete),
)
NESTED = st.one_of(
    NUMBERS,
    st.lists(NUMBERS, min_size=1, max_size=2).map(spaces.Tuple),
    st.dictionaries(st.sampled_from("ab"), NUMBERS, min_size=1).map(spaces.Dict),
)


def in_doubles(value):
    """Return an observation with lists and 64-bit numbers, as many environments give it."""
    if isinstance(value, dict):
        return {name: in_doubles(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(in_doubles, value))
    return value.tolist() if isinstance(value, np.ndarray) and value.ndim else value


@examples(60)
@given(space=NESTED, seed=st.integers(0, 99), doubles=st.booleans())
def test_an_observation_in_its_space_is_shown_without_a_word(space, seed, doubles) -> None:
    space.seed(seed)
    first, then = space.sample(), space.sample()
    if doubles:
        first, then = in_doubles(first), in_doubles(then)
    assert all(isinstance(one, StepResult) for one in shown(space, first, then))  # a warning would be an error


@examples(60)
@given(space=NESTED, seed=st.integers(0, 99))
def test_a_missing_observation_is_refused_by_the_name_of_its_environment(space, seed) -> None:
    space.seed(seed)
    with pytest.raises(TypeError, match=r"Shows.* returned no observation"):
        shown(space, None, space.sample())
    failed = shown(space, space.sample(), None)[1]
    assert isinstance(failed, EnvFailure)
    assert not failed.reason.scored
    assert "returned no observation" in failed.error


@pytest.mark.parametrize(
    ("space", "wrong"),
    [
        (spaces.Discrete(3), 3),
        (spaces.Box(-1, 1, (2,)), np.array([0.0, np.nan])),
        (spaces.Box(-1, 1, (2,)), [0.5, 0.5, 0.5]),
        (spaces.Box(-1, 1, (2,)), [0.5, 5.0]),
        (spaces.Box(0, 9, (2,), np.int64), [0.5, 5.0]),
        (spaces.MultiBinary(2), [0, 2]),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(2)), {"a": 1, "b": 2}),
        (spaces.Tuple([spaces.Discrete(2)]), (4,)),
    ],
)
def test_an_observation_outside_its_space_is_found(space, wrong) -> None:
    space.seed(0)
    for first, then in ((wrong, space.sample()), (space.sample(), wrong), (wrong, wrong)):
        with warnings.catch_warnings():  # as users run it: an error of Gymnasium's warning would be a finding
            warnings.simplefilter("ignore")
            found = Inspector(partial(Shows, space, first, then), episodes=2).look_at("spaces")
        assert (found.verdict, "which is not in" in found.got) == (PROBLEM, True)


def test_a_hidden_price_makes_different_tasks() -> None:
    for hidden in (sound_text.Price, sound_text.Dark, sound_text.Coin):
        assert Inspector(hidden, episodes=20).look_at("variety").verdict == OK


def test_tasks_are_the_same_only_if_no_action_tells_them_apart() -> None:
    class Fixed(sound_text.Price):
        def draw(self, rng):
            super().draw(rng)
            self.price = 5

    found = Inspector(Fixed, episodes=20).look_at("variety")
    assert found.verdict == WARNING
    assert "10 seeds gave the same task: the same episode after each of " in found.got


# ---------------------------------------------------------------------------------------------------------------------
# With the options of a training
# ---------------------------------------------------------------------------------------------------------------------

OPTIONS = [
    {"turn_limit": 2},
    {"turn_limit": 3, "invalid_penalty": 0.5, "end_after_invalid": 2},
    {"action_format": "json:move"},
    {"success": 0.5},
    {"success": lambda info, total: total > 0.5, "instructions": "Play well."},
]


@examples(40)
@given(
    kind=st.sampled_from(
        [sound_text.Higher, sound_text.Lift, sound_spaces.Aim, sound_spaces.Click, sound_text.Masked, sound_text.Catch]
    ),
    options=st.sampled_from(OPTIONS),
    seed=st.integers(0, 9),
)
def test_a_check_plays_what_is_trained(kind, options, seed) -> None:
    checked = Inspector(kind, episodes=2, options=options).play(seed)
    spec = EnvSpec(kind, **{"action_format": None, **options})
    env = spec.make(next(iter(spec.weights)))
    seen = [env.reset(seed=seed)[0]]
    results = []
    for action in checked.actions:
        results.append(
            take_step(env, ParseAction(sound_text.Higher(), options.get("action_format")).write_action(action))
        )
        seen.append(results[-1].observation)
    assert seen == checked.observations
    assert [one.reward for one in results] == [one[2] for one in checked.seen[1:]]
    assert results[-1].info.get("success") == checked.seen[-1][6]
    assert (results[-1].terminated, results[-1].truncated) == checked.seen[-1][3:5]


def test_checks_measure_with_the_options_of_a_training() -> None:
    def looked(promise, **options):
        return Inspector(sound_spaces.Bare, episodes=20, options=options).look_at(promise)

    assert looked("end").got == "after 5 turns"
    assert looked("end", turn_limit=2).got == "after 2 turns"
    assert looked("success").verdict == WARNING
    assert looked("success", success=0.0).got == "declared in info; 20 of 20 solved by random play"
    unwritable = {"action_format": "regex:([a-z]+)", "turn_limit": 5, "invalid_penalty": 1.0}  # actions are digits
    assert looked("reward", **unwritable).got == "-5 in 20 episodes of random play, always the same"
    assert looked("instructions", instructions="Answer with 1 if the first number is larger.").verdict == OK


def test_a_declared_optimum_is_that_of_the_environment_as_declared() -> None:
    assert Inspector(sound_text.Walker, episodes=20).look_at("solver").verdict == OK
    made = type("Short", (sound_text.Walker,), {"optimal_success": 1.0})
    assert Inspector(made, episodes=20).look_at("solver").verdict == OK
    cut = Inspector(made, episodes=20, options={"turn_limit": 1}).look_at("solver")
    assert (cut.verdict, cut.got) == (OK, "returns 0.000 and solves 0.000 of 20 episodes")


@pytest.mark.parametrize("command", ["validate", "card"])
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--turn-limt=8", "there is no option turn_limt; did you mean 'turn_limit'?"),
        ("--turn-limit=0", "turn_limit must be an integer of at least 1, got 0"),
        ("--success=often", "often"),
        ("--action-format=boxd", "boxd"),
        ("--seats=self", "there is no option seats"),
    ],
)
def test_a_wrong_option_of_a_check_is_refused_by_name(command, option, said) -> None:
    ran = run_command_line([command, "FrozenLake-v1", option])
    assert ran.exit_code == 2
    assert said in " ".join(ran.stderr.split())


def test_the_kit_checks_an_environment_as_it_is_trained() -> None:
    spec = EnvSpec("TrlEnv/GuessNumber-v0", action_format=None, turn_limit=100)
    check_text_env(partial(spec.make, "TrlEnv/GuessNumber-v0"), episodes=5)
