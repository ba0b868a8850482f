"""OpenEnv servers that the tests play on, written with the real ``openenv``: ``uvicorn openenv_zoo:app``."""

import time
from collections import Counter
from typing import Any

from fastapi import FastAPI
from openenv.core.env_server import Action, Environment, Observation, State, create_app

app = FastAPI()
asked: Counter[str] = Counter()
"""Number of deliveries of each message to the environment ``/slow``."""


@app.get("/asked/{message}")
def how_often(message: str) -> int:
    return asked[message]


class Message(Action):
    message: str


class Echoed(Observation):
    echoed_message: str
    message_length: int = 0


class Base(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    state = State()


class Echo(Base):
    """Echo of OpenEnv's documentation: a tenth for every character, and no end."""

    def reset(self, seed=None, episode_id=None, **kwargs):
        return Echoed(echoed_message="Echo environment ready!", metadata={"seed": seed, "options": kwargs})

    def step(self, action, timeout_s=None, **kwargs):
        length = len(action.message)
        return Echoed(echoed_message=action.message, message_length=length, reward=0.1 * length)


class Said(Observation):
    said: str


class Slow(Base):
    """Environment that echoes after a requested delay; ``fail`` raises, ``end`` ends."""

    count = 0  # so that it answers without a reset, as many do

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.count = 0
        return Said(said="new episode")

    def step(self, action, timeout_s=None, **kwargs):
        asked[action.message] += 1
        self.count += 1
        name, _, seconds = action.message.partition(" for ")
        time.sleep(float(seconds or 0))
        if name == "fail":
            raise ValueError("no luck")
        return Said(said=f"answer {self.count} to {name}", reward=None, done=name == "end")


def mount(path: str, environment: Any, observation: type[Observation], sessions: int = 64) -> None:
    app.mount(path, create_app(environment, Message, observation, max_concurrent_envs=sessions))


mount("/echo", Echo, Echoed)
mount("/slow", Slow, Said)
mount("/one", Slow, Said, sessions=1)
