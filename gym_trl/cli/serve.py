"""``gym-trl serve``."""

import os
from typing import Annotated

from gym_trl.kinds import Arguments, Count, Range

EXAMPLES = """
gym-trl serve TrlEnv/GuessNumber-v0 --port 8000
gym-trl serve CartPole-v1 --port 0 --sessions 256
"""


def serve(
    env: str,
    *,
    port: Annotated[int, Range(least=0, most=65_535)] = 8000,
    host: str = "127.0.0.1",
    token: str | None = None,
    sessions: Count = 64,
    env_kwargs: Arguments | None = None,
) -> None:
    """Serve an environment to OpenEnv clients.

    Each client has an instance of its own. gym.make("TrlEnv/OpenEnv-v0", base_url="http://127.0.0.1:8000") is such a
    client. An action is {"message": TEXT}; reset accepts a seed and the environment's options. On a public address, put
    a proxy with TLS in front of it (docs/guides/openenv.md).

    Args:
        env: Environment, such as TrlEnv/GuessNumber-v0.
        port: Port to listen on; 0 selects a free one.
        host: Address to listen on; one other than the default requires a token.
        token: Bearer token that clients must send. Default: $GYM_TRL_TOKEN.
        sessions: Maximum number of concurrent sessions.
        env_kwargs: Arguments of the environment, such as high=8; a text that looks like a number is '"12"'.
    """
    from gym_trl.integrations.openenv.server import serve as serve_openenv

    token = token or os.environ.get("GYM_TRL_TOKEN")
    serve_openenv(env, env_kwargs=dict(env_kwargs or {}), host=host, port=port, sessions=sessions, token=token)
