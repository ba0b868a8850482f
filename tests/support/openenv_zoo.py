"""OpenEnv servers that the tests play on, all in one process, each at a path of its own.

Written with the real ``openenv``, 0.10 or 0.3.0: ``uvicorn openenv_zoo:app``. Those that are called after environments
of OpenEnv's or of Hugging Face Spaces have their actions and observations, and small games of their own behind them.
"""

import random
import time
from collections import Counter
from typing import Any

from fastapi import FastAPI
from fastmcp import FastMCP
from openenv.core.env_server import (
    Action,
    CallToolAction,
    CallToolObservation,
    Environment,
    MCPEnvironment,
    Observation,
    State,
    create_app,
)
from pydantic import Field

app = FastAPI()
asked: Counter[str] = Counter()
"""Number of deliveries of each message to the environment ``/slow``."""
answered: Counter[str] = Counter()


@app.get("/asked/{message}")
def how_often(message: str) -> dict[str, int]:
    return {"asked": asked[message], "answered": answered[message]}


class Message(Action):
    message: str


class Base(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()
        self.rng = random.Random(0)

    @property
    def state(self) -> State:
        return self._state

    def step(self, action, timeout_s=None, **kwargs):
        raise NotImplementedError


def serve(path: str, environment, action, observation, sessions: int = 64) -> None:
    app.mount(path, create_app(environment, action, observation, env_name=path[1:], max_concurrent_envs=sessions))


class Echoed(Observation):
    echoed_message: str
    message_length: int = 0


class Echo(Base):
    """Echo of OpenEnv's documentation: a tenth for every character, and no end."""

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._state = State(episode_id=episode_id, step_count=0)
        return Echoed(echoed_message="Echo environment ready!", metadata={"seed": seed, "options": kwargs})

    def step(self, action, timeout_s=None, **kwargs):
        self._state.step_count += 1
        length = len(action.message)
        about = {"step": self._state.step_count}
        return Echoed(echoed_message=action.message, message_length=length, reward=0.1 * length, metadata=about)


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
        answered[action.message] += 1
        return Said(said=f"answer {self.count} to {name}", reward=None, done=name == "end")


class Tools(MCPEnvironment):
    """Environment with an adding tool; every call pays a half, and the third one is the last."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server: Any = FastMCP("tools")

        @server.tool
        def add(a: int, b: int) -> int:
            "Add two integers."
            return a + b

        @server.tool
        def fail(word: str) -> str:
            "Never works."
            raise ValueError(f"no {word}")

        self.calls = 0
        self._state = State()
        super().__init__(server)

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.calls = 0
        return Observation(metadata={"task": f"Add {1 + seed % 9} and 2."})

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation(metadata={"error": "only tools"})

    async def step_async(self, action, timeout_s=None, **kwargs):
        observation = await super().step_async(action, timeout_s=timeout_s, **kwargs)
        if isinstance(action, CallToolAction):
            self.calls += 1
            observation.reward, observation.done = 0.5, self.calls == 3
        return observation

    @property
    def state(self) -> State:
        return self._state


class Point(Action):
    x: int = Field(ge=0)
    y: int = Field(ge=0)


class Where(Observation):
    place: list[int]
    hint: str = ""


class Form(Base):
    """Environment that takes two numbers."""

    def reset(self, seed=None, episode_id=None, **kwargs):
        return Where(place=[0, 0])

    def step(self, action, timeout_s=None, **kwargs):
        return Where(place=[action.x, action.y], hint="far", reward=1.0, done=action.x == action.y)


class SpielAction(Action):
    action_id: int
    game_name: str = "catch"
    game_params: dict[str, Any] = Field(default_factory=dict)


class SpielObservation(Observation):
    info_state: list[float]
    legal_actions: list[int]
    game_phase: str = "playing"
    current_player_id: int = 0
    opponent_last_action: int | None = None


class Catch(Base):
    """OpenSpiel's Catch: ten rows of five cells, a falling ball and a paddle that moves by 0, 1 or 2 less one."""

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.row, self.paddle, self.column = 0, 2, random.Random(seed).randrange(5)
        return self.seen(None)

    def step(self, action, timeout_s=None, **kwargs):
        self.row += 1
        self.paddle = min(4, max(0, self.paddle + action.action_id - 1))
        return self.seen(None if self.row < 9 else 1.0 if self.paddle == self.column else -1.0)

    def seen(self, reward):
        cells = [0.0] * 50
        cells[5 * self.row + self.column] = cells[45 + self.paddle] = 1.0
        return SpielObservation(info_state=cells, legal_actions=[0, 1, 2], reward=reward, done=reward is not None)


class Arena(Observation):
    prompt: str
    messages: list[dict[str, Any]] = Field(default_factory=list)
    current_player_id: int = 0
    legal_players: list[int] = Field(default_factory=lambda: [0])
    info: dict[str, Any] = Field(default_factory=dict)


class Wordle(Base):
    """Wordle in TextArena's format: one growing message."""

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.secret = random.Random(seed).choice(["crane", "slate", "pious"])
        self.left, self.said = 6, "[GAME] You are playing Wordle. Guess a word of 5 letters, as in [apple]."
        return self.seen(0.0)

    def step(self, action, timeout_s=None, **kwargs):
        guess = action.message.strip("[]").lower()
        self.left -= 1
        marks = " ".join(
            "G" if ours == theirs else "Y" if ours in self.secret else "X"
            for ours, theirs in zip(guess, self.secret, strict=False)
        )
        self.said += f"\n[Player 0] {action.message}\n[GAME] {' '.join(guess.upper())}\n{marks}\n{self.left} left."
        return self.seen(float(guess == self.secret), done=guess == self.secret or self.left == 0)

    def seen(self, reward, done=False):
        said = [{"sender_id": -1, "content": self.said, "category": "MESSAGE"}]
        return Arena(prompt="Wordle-v0", messages=said, reward=reward, done=done)


class Sudoku(Base):
    """Small Sudoku in TextArena's format: messages, the last of which is the board."""

    SOLUTION = ("1234", "3412", "2143", "4321")

    def reset(self, seed=None, episode_id=None, **kwargs):
        rng = random.Random(seed)
        self.hidden = set(rng.sample([(row, column) for row in range(4) for column in range(4)], 3))
        return self.seen("", 0.0)

    def step(self, action, timeout_s=None, **kwargs):
        digits = [int(char) for char in action.message if char.isdigit()]
        if len(digits) != 3 or (digits[0] - 1, digits[1] - 1) not in self.hidden:
            return self.seen("That is an invalid move.", 0.0)
        row, column = digits[0] - 1, digits[1] - 1
        if self.SOLUTION[row][column] != str(digits[2]):
            return self.seen("That is an invalid move.", 0.0)
        self.hidden.discard((row, column))
        return self.seen("Well placed.", float(not self.hidden))

    def seen(self, said, reward):
        rows = [
            f"R{row + 1}  "
            + " ".join("." if (row, column) in self.hidden else digit for column, digit in enumerate(line))
            for row, line in enumerate(self.SOLUTION)
        ]
        parts = [("GAME", said), ("GAME_BOARD", "Game Board:\n   C1 C2 | C3 C4\n" + "\n".join(rows))]
        messages = [{"sender_id": -1, "content": text, "category": kind} for kind, text in parts if text]
        return Arena(
            prompt="Fill the grid. Answer like [1 2 3].", messages=messages, reward=reward, done=not self.hidden
        )


serve("/echo", Echo, Message, Echoed)
serve("/slow", Slow, Message, Said)
serve("/two", Slow, Message, Said, sessions=2)
serve("/tools", Tools, CallToolAction, CallToolObservation)
serve("/form", Form, Point, Where)
serve("/catch", Catch, SpielAction, SpielObservation)
serve("/wordle", Wordle, Message, Arena)
serve("/sudoku", Sudoku, Message, Arena)
