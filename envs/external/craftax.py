"""Adapter to Craftax-Classic, a survival game in two dimensions after Crafter and Minecraft."""

import random
from functools import cache
from typing import Any

from gym_trl.envs.external.adapter import Adapter, Played
from gym_trl.errors import ConfigError
from gym_trl.types import Policy

_BLOCKS = {
    "out_of_bounds": " ",
    "grass": ".",
    "water": "~",
    "stone": "#",
    "tree": "T",
    "wood": "w",
    "path": "_",
    "coal": "c",
    "iron": "i",
    "diamond": "d",
    "crafting_table": "B",
    "furnace": "F",
    "sand": ":",
    "lava": "!",
    "plant": "p",
    "ripe_plant": "P",
}
"""Letters of the map; ``@`` is the player."""
_MOBS = {"zombies": "a zombie", "cows": "a cow", "skeletons": "a skeleton", "arrows": "an arrow"}
_STEPS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
_HEIGHT, _WIDTH = 7, 9


class CraftaxClassic(Adapter):
    """Game of Craftax-Classic: collect wood and stone, make tools, eat, drink and sleep in a world of 64 x 64 fields.

    ::

        env = gym.make("External/CraftaxClassic-v0", goal="collect_wood")
        print(env.reset(seed=2)[0])
        .........
        ...T.T..:
        ........:
        ....@....
        ..T.....~
        ...T...c~
        ..#...###
        . grass, T tree, : sand, ~ water, c coal, # stone
        You are @ on grass, facing up: grass.
        Health 9, food 9, drink 9, energy 9, daylight 80%. You have nothing.
        env.step("left")

    An observation is the map of 7 x 9 fields around the player with a legend of what is in it, creatures, the state of
    the player and what is carried. The actions are Craftax's 17: ``left``, ``do`` (what is faced), ``place table`` and
    so on; one that lacks its materials does nothing. Another answer is invalid and takes no time.

    Each of the 22 achievements pays 1/22 the first time; Craftax also pays for health, which is left out, so that no
    reward is negative. Death, lava and the 10,000th step end the game, and nothing is declared a success. With a
    ``goal`` only this achievement pays, 1.0, and is ``success`` and the end. Set a ``turn_limit``.

    JAX compiles the game in the first instance of a process, which takes 10 to 30 s. Where JAX can use a GPU, it
    reserves most of its memory: set ``JAX_PLATFORMS=cpu``.

    Args:
        goal: Achievement that is the task, such as ``"collect_wood"``; ``None`` for all of them.
        render_mode: ``None``; rendering is not supported.

    Raises:
        MissingDependencyError: Craftax or JAX is not installed.
        ConfigError: The achievement does not exist.
    """

    extra = "craftax"

    def __init__(self, goal: str | None = None, *, render_mode: None = None) -> None:
        super().__init__()
        self._import("craftax", "jax", "craftax.craftax_env")
        constants = self._import("craftax.craftax_classic.constants")
        self._blocks = [block.name.lower() for block in constants.BlockType]
        self._actions = {action.name.lower().replace("_", " "): action.value for action in constants.Action}
        self._achievements = [achievement.name.lower() for achievement in constants.Achievement]
        if goal is not None and goal not in self._achievements:
            raise ConfigError(f"goal must be None or one of {self._achievements}, got {goal!r}")
        self.goal = goal
        self.declares_success = goal is not None
        task = f"Your task: {goal.replace('_', ' ')}." if goal else "Do as many different things as you can."
        self.instructions = (
            f"You survive in a world of fields. {task} Wood comes from trees, a table takes wood, tools are made "
            "beside a table, iron tools beside a table and a furnace. A direction turns you, and moves you if the "
            "field is free; do works on the field that you face. Answer with one of: "
            f"{', '.join(self._actions)}."
        )
        self._reset, self._step = _compiled()
        self._key: Any = None
        self._state: Any = None

    @classmethod
    def offered(cls) -> list[dict[str, Any]]:
        """Return the arguments of the whole game and of some goals."""
        cls._import("craftax", "jax")
        return [{}, *({"goal": goal} for goal in ("collect_wood", "place_table", "eat_cow", "make_wood_pickaxe"))]

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._key, self._state = self._reset(seed)
        return self._show(), self._more()

    def _play(self, action: str) -> Played:
        number = self._actions.get(" ".join(action.lower().replace("_", " ").split()))
        success = False if self.goal else None
        if number is None:
            return Played("That is no action.", success=success, valid=False, more=self._more())
        before = self._state.achievements
        self._state, over = self._step(self._key, self._state, number)
        new = [self._achievements[place] for place in (self._state.achievements & ~before).nonzero()[0]]
        reward = len(new) / len(self._achievements)
        if self.goal:
            success = self.goal in new
            reward, over = float(success), over or success
        shown = "\n".join([*(f"Achieved: {name.replace('_', ' ')}." for name in new), self._show()])
        timed_out = over and not success and self._state.timestep >= 10_000 and self._state.player_health > 0
        return Played(shown, reward, over and not timed_out, timed_out, success, more={} if over else self._more())

    def _more(self) -> dict[str, Any]:
        return {"admissible_actions": list(self._actions)}

    def _show(self) -> str:
        state = self._state
        row, column = (int(part) for part in state.player_position)
        names = [
            [self._at(row + down, column + right) for right in range(-(_WIDTH // 2), _WIDTH // 2 + 1)]
            for down in range(-(_HEIGHT // 2), _HEIGHT // 2 + 1)
        ]
        lines = ["".join(_BLOCKS[name] for name in line) for line in names]
        middle = lines[_HEIGHT // 2]
        lines[_HEIGHT // 2] = f"{middle[: _WIDTH // 2]}@{middle[_WIDTH // 2 + 1 :]}"
        seen = dict.fromkeys(name for line in names for name in line if name != "out_of_bounds")
        lines.append(", ".join(f"{_BLOCKS[name]} {name.replace('_', ' ')}" for name in seen))
        facing = list(_STEPS)[int(state.player_direction) - 1]
        down, right = _STEPS[facing]
        faced = self._at(row + down, column + right).replace("_", " ")
        here = self._at(row, column).replace("_", " ")
        about = [f"You are @ on {here}, facing {facing}: {faced}."]
        about += [f"There is {creature}." for creature in self._creatures(row, column)]
        if state.is_sleeping:
            about.append("You are asleep.")
        lines.append(" ".join(about))
        held = {name.replace("_", " "): int(count) for name, count in vars(state.inventory).items() if count}
        carried = ", ".join(f"{count} {name}" for name, count in held.items()) or "nothing"
        lines.append(
            f"Health {state.player_health}, food {state.player_food}, drink {state.player_drink}, energy "
            f"{state.player_energy}, daylight {round(100 * float(state.light_level))}%. You have {carried}."
        )
        return "\n".join(lines)

    def _at(self, row: int, column: int) -> str:
        height, width = self._state.map.shape
        inside = 0 <= row < height and 0 <= column < width
        return self._blocks[int(self._state.map[row, column])] if inside else "out_of_bounds"

    def _creatures(self, row: int, column: int) -> list[str]:
        creatures = []
        everyone = vars(self._state)
        for kind, name in _MOBS.items():
            for place, alive in zip(everyone[kind].position, everyone[kind].mask, strict=True):
                down, right = int(place[0]) - row, int(place[1]) - column
                if alive and abs(down) <= _HEIGHT // 2 and abs(right) <= _WIDTH // 2:
                    there = _distance(right, "right", "left") + _distance(down, "down", "up")
                    creatures.append(f"{name} {', '.join(there) or 'here'}")
        return creatures

    def random_policy(self, seed: int) -> Policy:
        """Make a policy that plays random actions."""
        rng = random.Random(seed)
        actions = list(self._actions)
        return lambda observation: rng.choice(actions)


def _distance(count: int, ahead: str, back: str) -> list[str]:
    return [f"{abs(count)} {ahead if count > 0 else back}"] if count else []


@cache
def _compiled() -> tuple[Any, Any]:
    """Return functions that begin a game and play an action; states are NumPy arrays."""
    import jax
    from craftax.craftax_env import make_craftax_env_from_name

    game = make_craftax_env_from_name("Craftax-Classic-Symbolic-v1", auto_reset=False)
    parameters = game.default_params
    cpu = jax.local_devices(backend="cpu")[0]

    def reset(seed: int) -> tuple[Any, Any]:
        with jax.default_device(cpu):
            key = jax.random.PRNGKey(seed)
            _, state = game.reset(key, parameters)
            return key, jax.device_get(state)

    def step(key: Any, state: Any, action: int) -> tuple[Any, bool]:
        with jax.default_device(cpu):
            drawn = jax.random.fold_in(key, int(state.timestep))
            _, state, _, over, _ = game.step(drawn, state, action, parameters)
            return jax.device_get(state), bool(over)

    step(*reset(1), 0)
    return reset, step
