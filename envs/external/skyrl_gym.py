"""Adapter to the environments of SkyRL-gym, on rows of their data sets."""

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from gym_trl.envs.external.adapter import Adapter, Played
from gym_trl.errors import ConfigError


class SkyRLGym(Adapter):
    """Environment of SkyRL-gym, which plays one row of a data set per episode.

    ::

        row = {
            "prompt": [{"role": "user", "content": "What is 2 + 2? End with '#### ANSWER'."}],
            "reward_spec": {"ground_truth": "4"},
        }
        env = gym.make("External/SkyRLGym-v0", env="gsm8k", rows=[row])
        env.reset(seed=0)[0]
        "What is 2 + 2? End with '#### ANSWER'."
        env.step("It is #### 4")[1]
        1.0

    A row has the fields of SkyRL's data sets: the ``prompt``, which is the first observation, and the fields that the
    environment needs, which are not shown. The seed, or the reset option ``instance``, chooses the row. The
    environments parse responses themselves, so pass them on unchanged: ``action_format=None``. ``success`` is an end
    with a reward of 1.0. Some environments call a web service (``search``), need databases (``text2sql``), or run the
    response as a program (``lcb``); these are not tested.

    Args:
        env: Name of the environment.
        rows: Rows of a data set, or a file of them in JSON Lines.
        render_mode: ``None``; rendering is not supported.
        **settings: Items of its ``env_config``.

    Raises:
        MissingDependencyError: SkyRL-gym is not installed.
        ConfigError: The environment does not exist, there are no rows, or it does not accept a row.
    """

    extra = "skyrl-gym"

    def __init__(
        self,
        env: str,
        rows: Sequence[Mapping[str, Any]] | str | PathLike[str],
        *,
        render_mode: None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        skyrl_gym = self._import("skyrl_gym")
        if env not in skyrl_gym.registry:
            raise ConfigError(f"SkyRL-gym has no environment {env!r}; it has {sorted(skyrl_gym.registry)}")
        self.env = env
        self.rows = _rows(rows)
        self.num_instances = len(self.rows)
        self._make, self._settings = skyrl_gym.make, settings
        self._made(self.rows[0]).close()

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        row = self.rows[self._instance]
        self.close()
        self._game = self._made(row)
        messages, _ = self._game.init([dict(message) for message in row["prompt"]])
        return _text(messages), {}

    def _play(self, action: str) -> Played:
        result = self._game.step(action)
        reward, over = float(result["reward"]), bool(result["done"])
        return Played(_text(result["observations"]), reward, terminated=over, success=over and reward >= 1.0)

    def _made(self, row: Mapping[str, Any]) -> Any:
        extras = {"extra_info": {}, **{name: value for name, value in row.items() if name != "prompt"}}
        try:
            return self._make(self.env, env_config=dict(self._settings), extras=extras)
        except (AssertionError, ImportError, KeyError, TypeError) as error:
            raise ConfigError(f"{self.env} cannot be made of a row with {sorted(extras)}: {error}") from error


def _rows(rows: Sequence[Mapping[str, Any]] | str | PathLike[str]) -> list[Mapping[str, Any]]:
    if isinstance(rows, str | PathLike):
        try:
            rows = [json.loads(line) for line in Path(rows).read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read rows, one JSON object a line: {error}") from error
    if not rows or not all(isinstance(row, Mapping) and row.get("prompt") for row in rows):
        raise ConfigError("rows must be a list of objects with a prompt, which is a list of messages")
    return list(rows)


def _text(messages: Sequence[Mapping[str, str]]) -> str:
    return "\n\n".join(message["content"] for message in messages)
