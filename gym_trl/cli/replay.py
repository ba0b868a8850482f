"""``gym-trl replay``."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from gym_trl.cli.errors import clear_errors
from gym_trl.cli.options import DebugOption, EnvKwargsOption, NamesArgument, TrustOption, check_other, read_trust
from gym_trl.cli.terminal import say
from gym_trl.cli.values import read_pairs
from gym_trl.text.textify import counted

EXAMPLES = """
gym-trl replay evals/guess
gym-trl replay runs/first --env-kwargs reward=efficient
gym-trl replay evals/guess --reward my_rewards:score --out scored.jsonl
gym-trl replay evals/mine my_game.py:MyGame
"""
_REWARD_HELP = "package.module:function that returns the return of a record. Default: the environment's rewards."


@clear_errors
def replay(
    path: Annotated[Path, Argument(metavar="FILE", help="Folder or file of records.")],
    names: NamesArgument = None,
    *,
    env_kwargs: EnvKwargsOption = None,
    reward: Annotated[str | None, Option(metavar="FUNCTION", help=_REWARD_HELP)] = None,
    out: Annotated[Path | None, Option(help="File for the records with the new rewards, as JSON Lines.")] = None,
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Replay recorded actions, and report differences.

    With --env-kwargs or --reward, new rewards are computed.

    Exit status: 1 if an observation, a reward or an episode's end differs from the record, 2 for an error, otherwise 0.
    """
    from gym_trl.evaluation.replay import replay as replay_records
    from gym_trl.evaluation.scores import Scoreboard
    from gym_trl.kinds import load_function
    from gym_trl.records.files import read_records
    from gym_trl.records.json_lines import write_json_lines

    trusted = read_trust(trust, names, f"gym-trl replay {shlex.quote(str(path))}", [(".*", "")])
    function = None if reward is None else load_function(reward)
    different = count = 0
    before, after = Scoreboard(), Scoreboard()

    def recorded() -> Iterator[Any]:
        for record in read_records(path):
            before.add(record)
            yield record

    def replayed() -> Iterator[Any]:
        nonlocal different, count
        for replay in replay_records(recorded(), env_kwargs=read_pairs(env_kwargs), reward=function, trust=trusted):
            count += 1
            after.add(replay.record)
            different += bool(replay.differences)
            for difference in replay.differences:
                say(f"episode {count} ({replay.record['task']['id']}) {difference}")
            yield replay.record

    if out is not None:
        check_other(path, out)
        write_json_lines(replayed(), out)
    else:
        for _ in replayed():
            pass
    say(f"Replayed {counted(count, 'episode')}; {different} with differences.")
    if env_kwargs or reward:
        for then, now in zip(before.rows(), after.rows(), strict=True):
            say(f"{then.policy} on {then.env_id}: recorded return {then.mean_return}, new return {now.mean_return}")
    if different:
        raise typer.Exit(1)
