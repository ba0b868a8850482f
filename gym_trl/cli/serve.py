"""``gym-trl serve``."""

from typing import Annotated

from typer import Argument, Option

from gym_trl.cli.errors import clear_errors
from gym_trl.cli.options import DebugOption, EnvKwargsOption
from gym_trl.cli.values import read_pairs

EXAMPLES = """
gym-trl serve TrlEnv/GuessNumber-v0 --port 8000
gym-trl serve CartPole-v1 --port 0 --sessions 256
"""
_BEARER_HELP = "Bearer token that clients must send; required for any address but this machine's own."


@clear_errors
def serve(
    env_id: Annotated[str, Argument(metavar="ID", help="Environment, such as TrlEnv/GuessNumber-v0.")],
    *,
    port: Annotated[int, Option(min=0, max=65_535, help="Port to listen on; 0 selects a free one.")] = 8000,
    host: Annotated[
        str, Option(help="Address to listen on; one other than the default requires a token.")
    ] = "127.0.0.1",
    token: Annotated[str | None, Option(envvar="GYM_TRL_TOKEN", help=_BEARER_HELP)] = None,
    sessions: Annotated[int, Option(min=1, help="Maximum number of concurrent sessions.")] = 64,
    env_kwargs: EnvKwargsOption = None,
    debug: DebugOption = False,
) -> None:
    """Serve an environment to OpenEnv clients.

    Each client has an instance of its own. gym.make("TrlEnv/OpenEnv-v0", base_url="http://127.0.0.1:8000") is such a
    client. An action is {"message": TEXT}; reset accepts a seed and the environment's options. On a public address, put
    a proxy with TLS in front of it (docs/guides/openenv.md).
    """
    from gym_trl.integrations.openenv.server import serve as serve_openenv

    serve_openenv(env_id, env_kwargs=read_pairs(env_kwargs), host=host, port=port, sessions=sessions, token=token)
