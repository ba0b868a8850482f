"""Public environments that speak text, by the way they declare their spaces: hardly any declaration is right.

What they show and take is text all the same, so that nothing is held to a declaration, drawn from it or printed.
"""

import string
import sys
from typing import Any

import gymnasium as gym
import pytest
from gymnasium import spaces

from gym_trl import GymSpec

SHOWN = "You are in a “room”.\n#.@ — exits: go north."
BELOW = "  You are in a “room”.\n  #.@ — exits: go north."  # as a part of several lines, below its name
UNICODE = "".join(map(chr, range(0x20, 0x3000)))
Text = spaces.Text

# Where it was seen; what it declares for observations and for actions; what it shows; what that becomes.
DECLARED: dict[str, tuple[Any, Any, Any, str]] = {
    "LLF-Bench": (
        spaces.Dict(
            instruction=Text(sys.maxsize, charset=string.printable),
            observation=Text(sys.maxsize, charset=string.printable),
            feedback=Text(sys.maxsize, charset=string.printable),
        ),
        Text(sys.maxsize, charset=string.printable),
        {"instruction": "Find it.", "observation": SHOWN, "feedback": None},
        f"instruction: Find it.\nobservation:\n{BELOW}",
    ),
    "mudgym": (
        spaces.Dict(text=Text(4096, min_length=0)),
        Text(80, min_length=1, charset=string.ascii_letters + string.digits + string.punctuation + " "),
        {"text": SHOWN},
        f"text:\n{BELOW}",
    ),
    "Minari's tests": (Text(20, charset=UNICODE), Text(10, min_length=2, charset="01"), SHOWN, SHOWN),
    "a TextWorld wrapper": (
        Text(16, charset=string.ascii_letters + string.punctuation + " \n"),
        Text(256, charset=string.ascii_letters + " "),
        SHOWN,
        SHOWN,
    ),
    "nurse triage": (Text(8192, min_length=1), Text(2048, min_length=1), SHOWN, SHOWN),
    "AutoML": (Text(65536), Text(65536), SHOWN, SHOWN),
    "Lisp katas": (Text(2048, min_length=0), Text(8192, min_length=0), "", ""),
    "SWE sandbox": (Text(10_000), Text(100_000), SHOWN, SHOWN),
    "CTF shell": (
        spaces.Dict(return_code=spaces.Discrete(256), stdout=Text(10_000)),
        Text(1000),
        {"return_code": 1, "stdout": ""},
        "return_code: 1\nstdout: ",
    ),
    "web recipes": (
        spaces.Dict(clickables=spaces.Sequence(Text(100)), page=Text(1000), url=Text(200)),
        Text(10_000),
        {"clickables": ("Buy", ""), "page": SHOWN, "url": "http://x"},
        f'clickables: ["Buy", ""]\npage:\n{BELOW}\nurl: http://x',
    ),
    "text and numbers": (
        spaces.Dict(health=spaces.Box(0, 1, (1,)), room=Text(50), turn=spaces.Discrete(9)),
        Text(50),
        {"health": [0.5], "room": "hall", "turn": 3},
        "health: 0.5\nroom: hall\nturn: 3",
    ),
}


class Declared(gym.Env):
    """Shows what it is told to and remembers what it was given."""

    def __init__(self, observation_space, action_space, shown):
        self.observation_space, self.action_space, self.shown = observation_space, action_space, shown
        self.given: list[Any] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.shown, {"expert_action": "the answer"}

    def step(self, action):
        self.given.append(action)
        return self.shown, 1.0, False, False, {"expert_action": "the answer"}


@pytest.fixture
def env_id():
    made: Any = Declared  # whose arguments are its own
    gym.register("Tests/Declared-v0", made, max_episode_steps=50, disable_env_checker=True)
    yield "Tests/Declared-v0"
    del gym.registry["Tests/Declared-v0"]


@pytest.mark.parametrize("where", DECLARED)
def test_what_is_shown_and_taken_is_text_whatever_is_declared(where, env_id, monkeypatch):
    observation_space, action_space, shown, expected = DECLARED[where]
    for space in (Text, spaces.Dict, spaces.Sequence):
        monkeypatch.setattr(space, "sample", lambda *_, **__: pytest.fail("nothing is drawn from a declaration"))
    kwargs = {"observation_space": observation_space, "action_space": action_space, "shown": shown}
    spec = GymSpec(env_id, env_kwargs=kwargs, action_format="plain", num_tasks=2, num_eval_tasks=0)
    env: Any = spec.make(env_id)
    assert env.reset(seed=3)[0] == expected
    observation, reward, *_ = env.step("go north — “now”")
    assert (observation, reward) == (expected, 1.0)
    assert env.unwrapped.given == ["go north — “now”"]
    prompt = spec.train_dataset[0]["prompt"][0]["content"]
    assert "the answer" not in prompt + observation
    assert len(prompt) < 500  # no space is printed
