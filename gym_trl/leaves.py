"""Table of the leaves: parts that nothing else imports, and that are deleted with their modules and their rows here."""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

Names: TypeAlias = Mapping[str, str]
"""Objects as ``"module:name"``, with the module's name after ``gym_trl.``, by the names under which users know them."""
Kind: TypeAlias = Literal["commands", "envs"]

_NONE: Names = MappingProxyType({})


class Leaf(NamedTuple):
    """Modules that can be deleted together, and the objects by which the library offers them."""

    modules: tuple[str, ...]
    """Names of modules and packages, after ``gym_trl.``."""
    commands: Names = _NONE
    """Functions of ``gym-trl``, each in a module that has ``EXAMPLES`` as well."""
    abouts: Names = _NONE
    """Sentences on these commands."""
    envs: Names = _NONE
    """Environments that need an extra, by their ids."""


LEAVES: dict[str, Leaf] = {
    "list": Leaf(
        ("cli.list_envs",), commands={"list": "cli.list_envs:list_envs"}, abouts={"list": "List the environments."}
    ),
    "play": Leaf(
        ("cli.play",), commands={"play": "cli.play:play"}, abouts={"play": "Play an environment in the terminal."}
    ),
    "train": Leaf(
        ("cli.train",), commands={"train": "cli.train:train"}, abouts={"train": "Train a model on an environment."}
    ),
    "viewer": Leaf(
        ("cli.view", "cli.episode_text", "viewer"),
        commands={"view": "cli.view:view"},
        abouts={"view": "Write a run as an HTML page."},
    ),
    "eval": Leaf(
        ("cli.evaluate",),
        commands={"eval": "cli.evaluate:evaluate"},
        abouts={"eval": "Evaluate models and other policies on held-out tasks."},
    ),
    "new": Leaf(
        ("cli.new",),
        commands={"new": "cli.new:new"},
        abouts={"new": "Write a package with an environment of your own to start from."},
    ),
    "validate": Leaf(
        ("cli.validate",),
        commands={"validate": "cli.validate:validate"},
        abouts={"validate": "Check that environments meet the requirements of training."},
    ),
    "info": Leaf(
        ("cli.info",),
        commands={"info": "cli.info:info"},
        abouts={"info": "Show an environment's arguments, scores and an example episode."},
    ),
    "card": Leaf(
        ("cli.card", "env_checker.card"),
        commands={"card": "cli.card:card"},
        abouts={"card": "Measure an environment, and write a page about it."},
    ),
    "doctor": Leaf(
        ("cli.doctor",),
        commands={"doctor": "cli.doctor:doctor"},
        abouts={"doctor": "Find what stands in the way of a training, before it starts."},
    ),
    "warm-start": Leaf(
        ("cli.warm_start",),
        commands={"warm-start": "cli.warm_start:warm_start"},
        abouts={"warm-start": "Train a model on episodes of a solver, before gym-trl train."},
    ),
    "compare": Leaf(
        ("cli.compare",), commands={"compare": "cli.compare:compare"}, abouts={"compare": "Compare two evaluations."}
    ),
    "openenv": Leaf(
        ("cli.serve", "integrations.openenv"),
        commands={"serve": "cli.serve:serve"},
        abouts={"serve": "Serve an environment to OpenEnv clients."},
        envs={"TrlEnv/OpenEnv-v0": "integrations.openenv.env:OpenEnv"},
    ),
    "code agent": Leaf(("integrations.code_agent",)),
    "eval protocol": Leaf(("integrations.eval_protocol",)),
    "legacy rollout": Leaf(("integrations.legacy_rollout",)),
    "trl-env": Leaf(("integrations.trl_env",)),
    "gem": Leaf(("envs.external.gem",), envs={"External/GEM-v0": "envs.external.gem:GEM"}),
    "openspiel": Leaf(
        ("envs.external.openspiel",), envs={"External/OpenSpiel-v0": "envs.external.openspiel:OpenSpiel"}
    ),
    "pettingzoo": Leaf(
        ("envs.external.pettingzoo",), envs={"External/PettingZoo-v0": "envs.external.pettingzoo:PettingZoo"}
    ),
    "reasoning-gym": Leaf(
        ("envs.external.reasoning_gym",), envs={"External/ReasoningGym-v0": "envs.external.reasoning_gym:ReasoningGym"}
    ),
    "scienceworld": Leaf(
        ("envs.external.scienceworld",), envs={"External/ScienceWorld-v0": "envs.external.scienceworld:ScienceWorld"}
    ),
    "textarena": Leaf(
        ("envs.external.textarena",), envs={"External/TextArena-v0": "envs.external.textarena:TextArena"}
    ),
    "textworld": Leaf(
        ("envs.external.textworld",), envs={"External/TextWorld-v0": "envs.external.textworld:TextWorld"}
    ),
}
"""Leaves by name; the commands are in the order of ``gym-trl --help``."""


def offered(kind: Kind) -> dict[str, str]:
    """Return the objects of one kind that the leaves offer, as ``"module:name"``.

    >>> offered("envs")["External/GEM-v0"], list(offered("commands"))[:3]
    ('gym_trl.envs.external.gem:GEM', ['list', 'play', 'train'])
    """
    return {name: f"gym_trl.{place}" for leaf in LEAVES.values() for name, place in leaf._asdict()[kind].items()}


def load(kind: Kind, name: str) -> Any:
    """Return an object that a leaf offers; import its module.

    >>> load("commands", "list").__name__
    'list_envs'
    """
    module, _, own = offered(kind)[name].partition(":")
    return vars(import_module(module))[own]
