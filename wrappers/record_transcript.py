"""Wrapper that records episodes."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym

from gym_trl.files import naming, open_to_append
from gym_trl.outcome import success_of, why_it_ended
from gym_trl.text.thoughts import split_thinking
from gym_trl.types import StopReason
from gym_trl.wrappers.frozen import FrozenAfterEnd, Step
from gym_trl.wrappers.inner import check_text, instructions_of, text_of
from gym_trl.wrappers.traits import traits


class RecordTranscript(FrozenAfterEnd):
    """Wrapper that keeps the last episode as a dict, and writes every episode to a file, one JSON object per line.

    >>> import gymnasium as gym
    >>> env = RecordTranscript(gym.make("TrlEnv/GuessNumber-v0"))
    >>> _ = env.reset(seed=3, options={"instance": 24})
    >>> _ = env.step("30"), env.step("25")
    >>> env.transcript["stop_reason"], env.transcript["return"], env.transcript["turns"][0]["answer"]
    ('success', 1.0, '30')

    The fields are those of the records of training (``docs/records.md``), without those of a model:
    ``task``, ``opening``, ``turns`` (``observation``, ``thinking``, ``answer``, ``action``, ``reward``,
    ``action_valid``, ``action_cut``), ``last_observation``, ``return``, ``success``, ``terminated``, ``truncated`` and
    ``stop_reason``, which is ``None`` during the episode; and ``instructions``. The task has the
    seed and the options.

    An episode is written when it ends, or when ``reset`` or ``close`` aborts it (``"cancelled"``). Each record is one
    append, so many environments, even in several processes, can share a file.

    Args:
        env: Environment whose observations and actions are text.
        path: Path of the file, which must not be a link; ``None`` only keeps ``transcript``.

    Raises:
        NotTextError: Observations or actions are not text.
        OSError: In a step, the file cannot be written.
    """

    def __init__(self, env: gym.Env[str, str], path: str | None = None) -> None:
        check_text(env, "RecordTranscript", observations=True, actions=True)
        super().__init__(env, path=path)
        self.path = None if path is None else Path(path)
        self.transcript: dict[str, Any] | None = None
        """Current episode, or the last one."""
        self._declares = False  # success, in some step of this episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode."""
        self._give_up()
        self._declares = False
        observation, info = super().reset(seed=seed, options=options)
        text_of(observation)
        spec, instructions = self.unwrapped.spec, instructions_of(self.env)
        self.transcript = {
            "version": 1,
            "task": {
                "env_id": spec.id if spec else None,
                "seed": None if seed is None else int(seed),
                "env_kwargs": {name: it for name, it in (spec.kwargs if spec else {}).items() if name != "render_mode"},
                "options": dict(options or {}),
            },
            "instructions": instructions,
            "opening": [
                {"role": "user", "content": f"{instructions}\n\n{observation}" if instructions else observation}
            ],
            "stop_reason": None,
            "return": 0.0,
            "success": None,
            "terminated": False,
            "truncated": False,
            "turns": [],
            "last_observation": observation,
        }
        return observation, info

    def close(self) -> None:
        """Write an unfinished episode, and close the environment."""
        self._give_up()
        super().close()

    def _step(self, action: str) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        terminated, truncated = bool(terminated), bool(truncated and not terminated)
        record = self.transcript
        assert record is not None  # there was a reset
        answer = split_thinking(action)
        turn = {
            "observation": record["last_observation"],
            "thinking": answer.thinking,
            "answer": answer.text,
            "action": info["action"] if isinstance(info.get("action"), str) else None,
            "reward": float(reward),
            "action_valid": bool(info.get("action_valid", True)),
            "action_cut": bool(info.get("action_cut", False)),
        }
        record["turns"].append(turn)
        self._declares = self._declares or info.get("success") is not None
        record |= {"last_observation": observation, "return": record["return"] + float(reward)}
        if terminated or truncated:
            record |= {"terminated": terminated, "truncated": truncated}
            reason = why_it_ended(info, terminated=terminated)
            declares = self._declares or bool(traits(self.env).declares_success)
            record |= {"success": success_of(reason, info, declares=declares), "stop_reason": str(reason)}
            self._write(record)
        return observation, reward, terminated, truncated, info

    def _give_up(self) -> None:
        record = self.transcript
        if record is not None and record["stop_reason"] is None and record["turns"]:
            record["stop_reason"] = str(StopReason.CANCELLED)
            self._write(record)

    def _write(self, record: dict[str, Any]) -> None:
        if self.path is not None:
            line = f"{json.dumps(record, default=str)}\n".encode()  # ASCII preserves lone surrogates
            with open_to_append(self.path) as file, naming(self.path):
                if (written := file.write(line)) != len(line):
                    if (end := file.tell()) == self.path.stat().st_size:  # no other process has appended meanwhile
                        file.truncate(end - written)
                    raise OSError(f"only {written} of {len(line)} bytes could be written to {self.path}: disk full?")
