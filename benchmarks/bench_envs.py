"""Measure the speed of the games, alone and beside the same games of other libraries.

    python benchmarks/bench_envs.py            # every game of ours
    python benchmarks/bench_envs.py --peers    # and GEM's and TextArena's, from PyPI in an environment of their own

A step is timed without the policy: the actions of random games are written down first and played again. In the
comparison all libraries play the same random actions, each in its own format, and resets count too.
"""

import itertools
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import QUICK, Cell, Table, publish

PEERS = Path(__file__).parents[1] / ".venv-peers"
PACKAGES = ("gem-llm==0.1.0", "textarena==0.7.4")
EPISODES, REPEATS, SECONDS = (5, 1, 0.1) if QUICK else (30, 3, 0.3)

_WAYS = ["up", "down", "left", "right"]
_CODES = [" ".join(code) for code in itertools.permutations("12345678", 4)]
_MINES = [
    (f"reveal {row + 1} {column + 1}", f"reveal {row} {column}", f"{row} {column}")
    for row, column in itertools.product(range(8), repeat=2)
]
_LIGHTS = [(f"{row + 1} {column + 1}", "", f"{row} {column}") for row in range(5) for column in range(5)]
# Of each game: our id and arguments, GEM's id, TextArena's id and players, and actions in the words of all three. Sizes
# are GEM's, or TextArena's where GEM has no such game; of TextArena's own the nearest is taken.
SAME: dict[str, tuple[str, dict[str, Any], str | None, tuple[str, int] | None, list[tuple[str, str, str]]]] = {
    "GuessNumber": (
        "GuessNumber",
        {"low": 1, "high": 50, "turns": 7},
        "game:GuessTheNumber-v0-hard",
        ("GuessTheNumber-v0-hardcore", 1),
        [(f"{n}", f"{n}", f"{n}") for n in range(1, 51)],
    ),
    "Mastermind": (
        "Mastermind",
        {"pegs": 4, "colors": 8, "repeats": False, "turns": 30},
        "game:Mastermind-v0-hard",
        ("Mastermind-v0-hard", 1),
        [(code, code, code) for code in _CODES],
    ),
    "TowerOfHanoi": (
        "TowerOfHanoi",
        {"disks": 3, "start": "tower", "turns": 10},
        "game:TowerofHanoi-v0-easy",
        ("TowerOfHanoi-v0", 1),
        [(move, move, move) for move in ("A B", "A C", "B A", "B C", "C A", "C B")],
    ),
    "2048": (
        "2048",
        {"size": 4, "target": 64, "turns": 50},
        "game:Game2048-v0-easy",
        ("2048-v0", 1),
        [(way, way, way) for way in _WAYS],
    ),
    "Minesweeper": (
        "Minesweeper",
        {"rows": 8, "columns": 8, "mines": 12, "turns": 64},
        "game:Minesweeper-v0-hard",
        ("Minesweeper-v0", 1),
        _MINES,
    ),
    "Sokoban": (
        "Sokoban",
        {"width": 6, "height": 6, "boxes": 2, "turns": 20},
        "game:Sokoban-v0-easy",
        ("Sokoban-v0", 1),
        [(way, way, way) for way in _WAYS],
    ),
    "FrozenLake": ("FrozenLake", {}, None, ("FrozenLake-v0", 1), [(way, way, way) for way in _WAYS]),
    "Blackjack": ("Blackjack", {}, None, ("Blackjack-v0", 1), [(way, way, way) for way in ("hit", "stick")]),
    "TicTacToe": ("TicTacToe", {}, None, ("TicTacToe-v0", 2), [(f"{n + 1}", "", f"{n}") for n in range(9)]),
    "ConnectFour": ("ConnectFour", {}, None, ("ConnectFour-v0", 2), [(f"{n + 1}", "", f"{n}") for n in range(7)]),
    "LightsOut": ("LightsOut", {"size": 5, "turns": 20}, None, ("LightsOut-v0", 1), _LIGHTS),
    "KuhnPoker": ("KuhnPoker", {}, None, ("KuhnPoker-v0", 2), [("bet", "", "bet"), ("pass", "", "check")]),
}
# Ours by itself; with answers that have the action in a box, which is how GEM's are read; and as most will use it.
OURS = ("bare", "boxed", "made")


def rate(reset: Callable[[int | None], None], step: Callable[[str], bool], actions: list[str]) -> float:
    """Return steps per second of processor time with random actions, resets included: the best of some tries.

    Seeded once, as Gymnasium's loops are.
    """
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


def ours(env_id: str, arguments: dict[str, Any], actions: list[str], way: str) -> float:
    """Measure our game, in one of the ways of ``OURS``."""
    import gymnasium as gym

    import gym_trl
    from gym_trl.wrappers import ParseAction

    assert gym_trl
    made = gym.make(f"TrlEnv/{env_id}-v0", **arguments)
    env: Any = made if way == "made" else made.unwrapped
    if way != "bare":
        env = ParseAction(env, "tag" if way == "made" else "boxed")
    marks = {"bare": "{}", "boxed": r"\boxed{{{}}}"}.get(way, "<action>{}</action>")
    said = [marks.format(action) for action in actions]
    return rate(lambda seed: env.reset(seed=seed), lambda action: bool(env.step(action)[2]), said)


def gems(env_id: str, actions: list[str]) -> float:
    """Measure GEM's game."""
    import gem

    env = gem.make(env_id)

    def step(action: str) -> bool:
        _, _, terminated, truncated, _ = env.step(action)
        return bool(terminated or truncated)

    return rate(lambda seed: env.reset(seed=seed), step, [f"\\boxed{{{action}}}" for action in actions])


def textarenas(env_id: str, players: int, actions: list[str]) -> float:
    """Measure TextArena's game, including the request for the observation, which every policy makes."""
    import textarena

    env = textarena.make(env_id)

    def step(action: str) -> bool:
        env.get_observation()
        done, _ = env.step(action)
        return bool(done)

    def reset(seed: int | None) -> None:
        env.reset(num_players=players, seed=seed)

    return rate(reset, step, [f"[{action}]" for action in actions])


def beside_peers() -> dict[str, dict[str, float | None]]:
    """Return steps per second of every library that has the game."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    table = {}
    for name in SAME:
        # Each in a process of its own, so that no cache (an opponent's moves) is shared.
        table[name] = {way: ask(Path(sys.executable), way, name) for way in OURS} | {
            peer: ask(python, peer, name) for peer in ("gem", "textarena")
        }
        print(name, {who: number and round(number) for who, number in table[name].items()}, flush=True)
    return table


def ask(python: Path, peer: str, name: str) -> float | None:
    """Return a peer's rate, or that of one of our ways; ``None`` if it lacks the game or cannot run here."""
    if peer not in OURS and SAME[name][2 if peer == "gem" else 3] is None:
        return None
    ran = subprocess.run(
        [str(python), __file__, "--peer", peer, name, *["--quick"] * QUICK],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if ran.returncode:
        print(f"{peer}'s {name}: {ran.stderr.strip().splitlines()[-1]}", flush=True)
        return None
    return float(ran.stdout.strip().splitlines()[-1])


def alone() -> dict[str, dict[str, float]]:
    """Return steps per second, milliseconds per reset and kilobytes of every game of ours."""
    import gymnasium as gym

    import gym_trl
    from gym_trl.testing import play
    from gym_trl.wrappers import ParseAction

    table = {}
    for env_id in sorted(gym_trl.GAMES):
        env: Any = gym.make(env_id)
        recorded = []
        for seed in range(EPISODES):
            steps = play(env, env.get_wrapper_attr("random_policy")(seed), seed=seed)[1:]
            recorded.append((seed, [action for action, *_ in steps]))
        parsed = ParseAction(gym.make(env_id))
        env.reset(seed=0)
        table[env_id] = {
            "bare": replayed(env.unwrapped, recorded),
            "gym.make and ParseAction": replayed(
                parsed, [(seed, [f"<action>{action}</action>" for action in actions]) for seed, actions in recorded]
            ),
            "reset_ms": reset_ms(env.unwrapped),
            "kilobytes": len(pickle.dumps(env.unwrapped)) / 1024,
        }
        print(env_id, {name: round(number, 3) for name, number in table[env_id].items()}, flush=True)
    return table


def replayed(env: Any, recorded: list[tuple[int, list[str]]]) -> float:
    """Return steps per second without resets: the best of some tries."""
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
    """Measure, print and write."""
    if sys.argv[1:2] == ["--peer"]:
        peer, name = sys.argv[2:4]
        env_id, arguments, gem_id, textarena_id, actions = SAME[name]
        if peer in OURS:
            print(ours(env_id, arguments, [action[0] for action in actions], peer))
        elif peer == "gem":
            assert gem_id is not None
            print(gems(gem_id, [action[1] for action in actions]))
        else:
            assert textarena_id is not None
            print(textarenas(*textarena_id, [action[2] for action in actions]))
        return
    own = alone()
    found: dict[str, Any] = {"alone": own}
    tables = [
        Table(
            "envs",
            ["game", "steps/s, bare", "`gym.make` and `ParseAction`", "reset, ms", "pickled, kB"],
            [[name.removeprefix("TrlEnv/"), *row.values()] for name, row in own.items()],
        )
    ]
    beside: dict[str, dict[str, float | None]] = {}
    if "--peers" in sys.argv[1:]:
        beside = beside_peers()
        found |= {"packages": PACKAGES, "beside_peers": beside}
        header = [
            "game",
            "steps/s: ours, bare",
            r"ours, `\boxed{}` read",
            "ours, `gym.make` and `ParseAction`",
            r"GEM, `\boxed{}` read",
            "TextArena",
            "bare over GEM",
            r"`\boxed{}` read over GEM",
        ]
        rows: list[list[Cell]] = [
            [name, *row.values(), *(ratio(row[way], row["gem"]) for way in ("bare", "boxed"))]
            for name, row in beside.items()
        ]
        tables.insert(0, Table("envs_beside_peers", header, rows))
    publish("envs", found, tables=tables, picture=lambda figure: bars(figure, beside), part=not beside)


def ratio(one: float | None, other: float | None) -> float | None:
    """Return the ratio of two rates, if both are present."""
    return one / other if one and other else None


def bars(figure: Any, table: dict[str, dict[str, float | None]]) -> None:
    """Draw the steps per second of all libraries for the same games."""
    axes = figure.subplots()
    labels = {"bare": "ours, bare", "boxed": "ours, box read", "made": "ours, made and parsed", "gem": "GEM, box read"}
    labels["textarena"] = "TextArena"
    for number, (who, label) in enumerate(labels.items()):
        places = [place + (number - 2) * 0.16 for place in range(len(table))]
        axes.bar(places, [row[who] or 0 for row in table.values()], width=0.16, label=label)
    axes.set_xticks(range(len(table)), list(table), rotation=30, ha="right")
    axes.set_yscale("log")
    axes.set_ylabel("steps a second")
    axes.set_title("Random actions, resets included; where there is no bar, there is no such game")
    axes.legend()


if __name__ == "__main__":
    main()
