"""Datasets of tasks. The task of a row is stored in its prompt, because a rollout receives only the prompt."""

from collections.abc import Mapping, Sequence
from typing import Any

from gym_trl.errors import TaskError, needs
from gym_trl.types import Message, Task


def make_dataset(
    tasks: Sequence[Task], *, system_prompt: str | None = None, instructions: Mapping[str, str] | None = None
) -> Any:
    """Return a ``datasets.Dataset`` with one row per task.

    >>> dataset = make_dataset([Task("TrlEnv/Echo-v0", seed=3)], instructions={"TrlEnv/Echo-v0": "Repeat words."})
    >>> dataset[0]["prompt"]
    [{'role': 'user', 'content': 'Repeat words.', 'task': '{"env_id": "TrlEnv/Echo-v0", "seed": 3, "options": {}}'}]

    The content of the last message is for people who inspect the dataset. In a rollout it is replaced by the
    environment's instructions and the first observation of the task.

    Args:
        tasks: The tasks.
        system_prompt: First message of every prompt.
        instructions: Content of the last message, by environment id. Default: the id.
    """
    with needs("train", "make_dataset"):
        from datasets import Dataset

    system = [{**Message("system", system_prompt).as_dict(), "task": None}] if system_prompt is not None else []
    shown = instructions or {}
    prompts = [
        [*system, {**Message("user", shown.get(task.env_id, task.env_id)).as_dict(), "task": task.to_json()}]
        for task in tasks
    ]
    return Dataset.from_dict({"prompt": prompts})


def read_prompt(prompt: Any) -> tuple[list[Message], Task | None]:
    """Return the messages of a prompt that precede the environment's first message, and its task if it has one.

    >>> read_prompt([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Play."}])
    ([Message(role='system', content='Be brief.'), Message(role='user', content='Play.')], None)
    >>> read_prompt("Play.")
    ([Message(role='user', content='Play.')], None)

    Raises:
        TaskError: The prompt is neither text nor a list of messages, or its task cannot be read.
    """
    if isinstance(prompt, str):
        return [Message("user", prompt)], None
    try:
        messages = [
            Message(one["role"], content_text(one["content"]), one.get("reasoning_content") or "") for one in prompt
        ]
        task = prompt[-1].get("task") if prompt else None
    except (TypeError, KeyError, AttributeError) as error:
        raise TaskError(f"a prompt must be text or a list of messages, got {prompt!r:.200}") from error
    return (messages, None) if task is None else (messages[:-1], Task.from_json(task))


def content_text(content: str | Sequence[Mapping[str, str]]) -> str:
    """Return the text of a message, whose content may be a list of parts as in multimodal datasets."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
