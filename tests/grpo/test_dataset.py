import pytest

from gym_trl.errors import TaskError
from gym_trl.grpo.dataset import make_dataset, read_prompt
from gym_trl.types import Message, Task

TASKS = [Task("TrlEnv/Echo-v0", 3), Task("TrlEnv/GuessNumber-v0", 4, {"instance": 2})]


@pytest.mark.parametrize("system_prompt", [None, "Be brief."])
def test_a_rows_prompt_gives_its_task_back(system_prompt):
    dataset = make_dataset(TASKS, system_prompt=system_prompt)
    preamble = [Message("system", system_prompt)] if system_prompt else []
    assert [read_prompt(row["prompt"]) for row in dataset] == [(preamble, task) for task in TASKS]


def test_a_message_in_parts_is_read_as_text():
    prompt = [{"role": "user", "content": [{"type": "text", "text": "Play "}, {"type": "text", "text": "well."}]}]
    assert read_prompt(prompt) == ([Message("user", "Play well.")], None)


@pytest.mark.parametrize("prompt", [7, [7], [{"role": "user"}], [{"role": "user", "content": [{"type": "image"}]}]])
def test_what_is_no_prompt_is_named(prompt):
    with pytest.raises(TaskError, match="a prompt must be text or a list of messages"):
        read_prompt(prompt)


def test_a_task_that_cannot_be_read_is_named():
    with pytest.raises(TaskError, match="a task must be JSON"):
        read_prompt([{"role": "user", "content": "", "task": "not json"}])
