"""``gym-trl audit``."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from gym_trl.cli.errors import clear_errors
from gym_trl.cli.flags import with_options, write_flags
from gym_trl.cli.options import DebugOption, JsonOption
from gym_trl.cli.terminal import say, say_aside
from gym_trl.env_checker.audit import AuditRow, Budget, audit as measure, envs_of
from gym_trl.errors import ConfigError
from gym_trl.files import replace_text
from gym_trl.options import Text

EXAMPLES = """
gym-trl audit TrlEnv/Wordle-v0 FrozenLake-v1
gym-trl audit gymnasium minigrid --out audits/grids
gym-trl audit CliffWalking-v1 --turn-limit 40 --success -40
gym-trl audit textarena reasoning-gym --processes 2
gym-trl audit my_game.py --json
"""


@clear_errors
@with_options(Text)
def audit(
    names: Annotated[
        list[str],
        Argument(
            metavar="NAME...",
            help="Ids, modules or packages that register environments, and adapters such as textarena or gem.",
        ),
    ],
    *,
    out: Annotated[Path, Option(help="Folder of the cards and the table; the same command continues it.")] = Path(
        "audit"
    ),
    seconds: Annotated[float, Option(min=1.0, help="Seconds for each environment, about.")] = Budget.seconds,
    episodes: Annotated[int, Option(min=2, help="Episodes of each policy.")] = Budget.episodes,
    search_steps: Annotated[
        int, Option(min=0, help="Steps of each search for a blind policy; 0 for none.")
    ] = Budget.search_steps,
    processes: Annotated[int, Option(min=1, help="Environments that are measured at the same time.")] = 1,
    limit: Annotated[int | None, Option(min=1, help="Most environments; the first ones by name. Default: all.")] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the tasks and the searches.")] = Budget.seed,
    as_json: JsonOption = False,
    debug: DebugOption = False,
    options: dict[str, Any],
) -> None:
    """Measure which environments pay without being read.

    Each is measured by gym-trl card in a process of its own; one that fails or hangs is a row with the reason. The
    verdict is reads, partly blind, blind, broken, or not measured with the reason. Options of the text, such as
    --turn-limit and --success, are those of gym-trl card, for all that are named.

    The folder gets audit.md, audit.html, audit.json, audit.png and the card of each environment. Ctrl-C stops after the
    environments that are being measured; the same command goes on.

    Exit status: 0, 2 for an error of the command.
    """
    from gym_trl.env_checker.audit.page import html, markdown, picture

    Text.of(options)
    flags = tuple(write_flags(options, Text))
    named = [replace(env, flags=flags) for name in names for env in envs_of(name)]
    envs = list({repr(env): env for env in named}.values())[:limit]
    if out.suffix:
        raise ConfigError(f"--out must be a folder, got {out}")
    done = 0

    def on_row(row: AuditRow, took: float) -> None:
        nonlocal done
        done += 1
        how_long = f"{took:.0f} s" if took else "measured before"
        say_aside(
            f"{done}/{len(envs)} {row.name}: {row.verdict} ({how_long})" + (f": {row.reason}" if row.reason else "")
        )

    budget = Budget(seconds, episodes, search_steps, seed)
    rows = measure(envs, out, budget, processes=processes, on_row=on_row)
    table = {"version": 1, "rows": [row.as_dict() for row in rows]}
    text = markdown(rows, budget)
    replace_text(out / "audit.json", json.dumps(table, indent=1, ensure_ascii=False) + "\n")
    replace_text(out / "audit.md", text)
    replace_text(out / "audit.html", html(rows, budget))
    try:
        picture(rows, out / "audit.png")
    except ImportError as error:
        say_aside(f"no picture: {error}")
    say(json.dumps(table, ensure_ascii=False) if as_json else text.split("\n## ")[0].rstrip())
    say_aside(f"Written: {out / 'audit.html'}")
