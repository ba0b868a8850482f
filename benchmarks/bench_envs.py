"""Measure the speed of the games, alone and beside the same games of other libraries.

    python benchmarks/bench_envs.py            # every game of ours, printed only
    python benchmarks/bench_envs.py --peers    # and GEM's and TextArena's (requirements-external.txt)

A step is timed without the policy: the actions of random games are recorded first and replayed. In the comparison all
libraries play the same random actions, each in its own format, and resets count.
"""

import itertools
import pickle
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from report import QUICK, Column, Table, in_process, installed, publish, run

PACKAGES = ("gem-llm", "textarena")
EPISODES, REPEATS, SECONDS = (5, 1, 0.1) if QUICK else (30, 3, 0.3)


def _alike(*actions: str) -> list[tuple[str, str, str]]:
    return [(action, action, action) for action in actions]


_WAYS = _alike("up", "down", "left", "right")
# Of each game: our arguments, GEM's id, TextArena's id and players, and actions in the words of all three. Sizes are
# GEM's, or TextArena's where GEM has no such game; of TextArena's own the nearest is taken.
SAME: dict[str, tuple[dict[str, Any], str | None, tuple[str, int], list[tuple[str, str, str]]]] = {
    "GuessNumber": (
        {"low": 1, "high": 50, "turns": 7},
        "game:GuessTheNumber-v0-hard",
        ("GuessTheNumber-v0-hardcore", 1),
        _alike(*(str(n) for n in range(1, 51))),
    ),
    "Mastermind": (
        {"pegs": 4, "colors": 8, "turns": 30},
        "game:Mastermind-v0-hard",
        ("Mastermind-v0-hard", 1),
        _alike(*(" ".join(code) for code in itertools.permutations("12345678", 4))),
    ),
    "TowerOfHanoi": (
        {"disks": 3, "start": "tower", "turns": 10},
        "game:TowerofHanoi-v0-easy",
        ("TowerOfHanoi-v0", 1),
        _alike("A B", "A C", "B A", "B C", "C A", "C B"),
    ),
    "2048": ({"size": 4, "target": 64, "turns": 50}, "game:Game2048-v0-easy", ("2048-v0", 1), _WAYS),
    "Minesweeper": (
        {"rows": 8, "columns": 8, "mines": 12, "turns": 64},
        "game:Minesweeper-v0-hard",
        ("Minesweeper-v0", 1),
        [(f"reveal {row + 1} {column + 1}", f"reveal {row} {column}", f"{row} {column}")
         for row, column in itertools.product(range(8), repeat=2)],
    ),
    "Sokoban": (
        {"width": 6, "height": 6, "boxes": 2, "turns": 20}, "game:Sokoban-v0-easy", ("Sokoban-v0", 1), _WAYS,
    ),
    "FrozenLake": ({}, None, ("FrozenLake-v0", 1), _WAYS),
    "TicTacToe": ({}, None, ("TicTacToe-v0", 2), [(f"{n + 1}", "", f"{n}") for n in range(9)]),
    "ConnectFour": ({}, None, ("ConnectFour-v0", 2), [(f"{n + 1}", "", f"{n}") for n in range(7)]),
    "LightsOut": (
        {"size": 5, "turns": 20}, None, ("LightsOut-v0", 1),
        [(f"{row + 1} {column + 1}", "", f"{row} {column}") for row in range(5) for column in range(5)],
    ),
    "KuhnPoker": ({}, None, ("KuhnPoker-v0", 2), [("bet", "", "bet"), ("pass", "", "check")]),
}  # fmt: skip
WAYS, PEERS = ("bare", "boxed", "made"), ("gem", "textarena")


def rate(reset: Callable[[int | None], None], step: Callable[[str], bool], actions: list[str]) -> float:
    """Return steps per second of processor time with random actions, resets included: the best of some repeats."""
    best, rng = 0.0, random.Random(0)
    for _ in range(REPEATS):
        count = 0
        reset(0)
        began = time.process_time()
        while (now := time.process_time()) - began < SECONDS / REPEATS:
            for _ in range(100):
                if step(rng.choice(actions)):
                    reset(None)
            count += 100
        best = max(best, count / (now - began))
    return best


def measured(who: str, name: str) -> float:
    """Return the steps per second of a game, in one of our ways or by a peer."""
    arguments, gem_id, textarena_id, actions = SAME[name]
    if who == "gem":
        import gem

        env = gem.make(gem_id)
        said = [f"\\boxed{{{action}}}" for _, action, _ in actions]
        return rate(lambda seed: env.reset(seed=seed), lambda action: any(env.step(action)[2:4]), said)
    if who == "textarena":
        import textarena

        env, players = textarena.make(textarena_id[0]), textarena_id[1]

        def step(action: str) -> bool:
            env.get_observation()  # as every policy does
            return bool(env.step(action)[0])

        def reset(seed: int | None) -> None:
            env.reset(num_players=players, seed=seed)

        return rate(reset, step, [f"[{action}]" for *_, action in actions])
    import gymnasium as gym

    import gym_trl
    from gym_trl.wrappers import ParseAction

    assert gym_trl
    env = gym.make(f"TrlEnv/{name}-v0", **arguments)
    if who != "made":
        env = env.unwrapped
    if who != "bare":
        env = ParseAction(env, "tag" if who == "made" else "boxed")
    marks = {"bare": "{}", "boxed": r"\boxed{{{}}}"}.get(who, "<action>{}</action>")
    said = [marks.format(action) for action, *_ in actions]
    return rate(lambda seed: env.reset(seed=seed), lambda action: bool(env.step(action)[2]), said)


def beside_peers() -> dict[str, dict[str, float | None]]:
    """Return steps per second of every library that has the game, each measured in a process of its own."""
    table: dict[str, dict[str, float | None]] = {}
    for name in SAME:
        table[name] = {}
        for who in (*WAYS, *PEERS):
            try:
                found = None if who == "gem" and SAME[name][1] is None else in_process(measured, who, name)
            except RuntimeError as error:
                print(error, flush=True)
                found = None
            table[name][who] = found
        print(name, {who: number and round(number) for who, number in table[name].items()}, flush=True)
    return table


def alone() -> dict[str, dict[str, float]]:
    """Return steps per second, milliseconds per reset and kilobytes of every game of ours."""
    import gymnasium as gym

    import gym_trl
    from gym_trl.random_play import random_policy
    from gym_trl.testing import play
    from gym_trl.wrappers import ParseAction

    table = {}
    for env_id in sorted(gym_trl.GAMES):
        env: Any = gym.make(env_id)
        recorded = []
        for seed in range(EPISODES):
            steps = play(env, random_policy(env, seed), seed=seed)[1:]
            recorded.append((seed, [action for action, *_ in steps]))
        parsed = ParseAction(gym.make(env_id))
        env.reset(seed=0)
        table[env_id] = {
            "bare": replayed(env.unwrapped, recorded),
            "made": replayed(
                parsed, [(seed, [f"<action>{action}</action>" for action in actions]) for seed, actions in recorded]
            ),
            "reset_ms": reset_ms(env.unwrapped),
            "kilobytes": len(pickle.dumps(env.unwrapped)) / 1024,
        }
        print(env_id, {name: round(number, 3) for name, number in table[env_id].items()}, flush=True)
    return table


def replayed(env: Any, recorded: list[tuple[int, list[str]]]) -> float:
    """Return steps per second without resets: the best of some repeats."""
    best = 0.0
    for _ in range(REPEATS):
        spent, count = 0.0, 0
        while spent < SECONDS / REPEATS:
            for seed, actions in recorded:
                env.reset(seed=seed)
                began = time.process_time()
                for action in actions:
                    env.step(action)
                spent += time.process_time() - began
                count += len(actions)
        best = max(best, count / spent)
    return best


def reset_ms(env: Any) -> float:
    """Return the mean milliseconds of a reset over a hundred different games."""
    env.reset(seed=0)
    began = time.process_time()
    for seed in range(100):
        env.reset(seed=seed)
    return (time.process_time() - began) * 10


def main() -> None:
    own = alone()
    columns: list[Column] = [
        ("game", "game"),
        ("steps/s, bare", "bare"),
        ("`gym.make` and `ParseAction`", "made"),
        ("reset, ms", "reset_ms"),
        ("pickled, kB", "kilobytes"),
    ]
    rows = [{"game": name.removeprefix("TrlEnv/"), **row} for name, row in own.items()]
    tables = [Table.of("envs", columns, rows)]
    beside: dict[str, dict[str, float | None]] = {}
    if "--peers" in sys.argv[1:]:
        beside = beside_peers()
        columns = [
            ("game", "game"),
            ("steps/s: ours, bare", "bare"),
            (r"ours, `\boxed{}` read", "boxed"),
            ("ours, `gym.make` and `ParseAction`", "made"),
            (r"GEM, `\boxed{}` read", "gem"),
            ("TextArena", "textarena"),
            ("bare over GEM", lambda row: row["gem"] and row["bare"] / row["gem"]),
            (r"`\boxed{}` read over GEM", lambda row: row["gem"] and row["boxed"] / row["gem"]),
        ]
        tables.insert(
            0, Table.of("envs_beside_peers", columns, [{"game": game, **row} for game, row in beside.items()])
        )
    packages = [f"{name}=={installed(name)}" for name in PACKAGES]
    figures = {"alone": own, "packages": packages, "beside_peers": beside}
    publish("envs", figures, tables=tables, part=not beside)


if __name__ == "__main__":
    run(main)
