"""``gym-trl list``."""

import sys

import gymnasium as gym

from gym_trl.cli.environments import describe
from gym_trl.cli.terminal import say
from gym_trl.registration import is_ours, load_plugins

EXAMPLES = """
gym-trl list
gym-trl list --all | grep -i sokoban
"""


def list_envs(
    *,
    all_: bool = False,
) -> None:
    """List the environments of this library and of installed packages.

    Args:
        all_: List every id registered with Gymnasium.
    """
    installed = load_plugins()
    if all_:
        for env_id in sorted(gym.registry):
            say(env_id)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("id", no_wrap=True)
    table.add_column("description")
    for env_id in sorted(env_id for env_id in gym.registry if is_ours(env_id) or env_id in installed):
        table.add_row(env_id, describe(env_id))
    # Lines are not wrapped in a pipe, for grep and cut.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(table, markup=False, highlight=False)
