# mypy: disable-error-code="override, misc, assignment"
# mypy: disable-error-code="attr-defined, arg-type, return-value"
"""Sound environments with text, listed actions and numbered ones."""

import asyncio
import random
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from gym_trl.spaces import AnyText


class Task(gym.Env[Any, Any]):
    """Base of the environments: a state is drawn in reset, and every action is judged until one is right."""

    turns = 1
    ends = "terminated"
    """Kind of end of the last of ``turns``."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.over = self.turns, False
        self.draw(self.np_random)
        return self.shown(), self.info()

    def step(self, action):
        if self.over:
            raise gym.error.ResetNeeded("the episode is over")
        self.left -= 1
        reward, solved, valid = self.judge(action)
        terminated = solved or (self.left <= 0 and self.ends == "terminated")
        truncated = self.left <= 0 and not terminated
        self.over = terminated or truncated
        info = {**self.info(), "success": solved, "action_valid": valid}
        return self.shown(), reward, terminated, truncated, info

    def info(self) -> dict[str, Any]:
        return {}


# --- text ---


class Sum(Task):
    """Free text, one step: a sum."""

    observation_space = action_space = AnyText()
    instructions = "Add the two numbers. Answer with the sum alone."
    optimal_success = optimal_return = 1.0

    def draw(self, rng):
        self.numbers = rng.integers(1, 4, 2).tolist()

    def shown(self):
        return f"{self.numbers[0]} + {self.numbers[1]} = ?"

    def judge(self, action):
        right = action.strip() == str(sum(self.numbers))
        return float(right), right, action.strip().isdigit()

    def random_policy(self, seed):
        rng = random.Random(seed)
        return lambda observation: str(rng.randint(2, 6))

    def solver(self):
        return lambda observation: str(sum(int(part) for part in observation.split() if part.isdigit()))


class Reverse(Task):
    """Free text over a charset, one step: a word backwards. It prints, and runs an event loop of its own."""

    observation_space = spaces.Text(20, charset="ab :")
    action_space = spaces.Text(2, min_length=2, charset="ab")
    instructions = "Write the word after the colon backwards."

    def draw(self, rng):
        self.word = "".join(rng.choice(list("ab"), 2))

    def shown(self):
        return f"ab: {self.word}"

    def judge(self, action):
        print(asyncio.run(asyncio.sleep(0, "judged")))
        right = action == self.word[::-1]
        return float(right), right, action in self.action_space

    def solver(self):
        return lambda observation: observation[:-3:-1]


class Higher(Task):
    """Text, several steps: a hidden number."""

    observation_space = action_space = AnyText()
    instructions = "Find the number from 1 to 9 in five tries. Answer with a number alone."
    turns = 5
    said = "Guess."

    def draw(self, rng):
        self.hidden, self.said = int(rng.integers(1, 10)), "Guess."

    def shown(self):
        return self.said

    def judge(self, action):
        valid = action in map(str, range(1, 10))
        guess = int(action) if valid else 0
        right = guess == self.hidden
        self.said = "No." if not valid else "Found." if right else "Higher." if guess < self.hidden else "Lower."
        return float(right), right, valid

    def random_policy(self, seed):
        rng = random.Random(seed)
        return lambda observation: str(rng.randint(1, 9))


class Errand(Task):
    """Text with listed actions: the key of the colour that the door has."""

    observation_space = action_space = AnyText()
    instructions = "Take the key of the colour of the door."
    turns = 3
    keys = ("take the red key", "take the green key", "take the blue key")

    def draw(self, rng):
        self.colour = ("red", "green", "blue")[rng.integers(3)]

    def info(self):
        return {"admissible_commands": list(self.keys)}

    def shown(self):
        return f"The door is {self.colour}."

    def judge(self, action):
        right = action == f"take the {self.colour} key"
        self.left = 0 if action in self.keys else self.left
        return float(right), right, action in self.keys


class Price(Task):
    """Text, three steps: find the hidden price by its answers."""

    observation_space = action_space = AnyText()
    instructions = "Offer 1 to 9 for a thing. You buy it at its price only, and hear if your offer was too low."
    turns = 3
    said = "Your offer?"

    def draw(self, rng):
        self.price, self.said = int(rng.integers(1, 10)), "Your offer?"

    def shown(self):
        return self.said

    def judge(self, action):
        valid = action in map(str, range(1, 10))
        right = valid and int(action) == self.price
        self.said = "Sold." if right else "Too low." if valid and int(action) < self.price else "No."
        return float(right), right, valid

    def random_policy(self, seed):
        rng = random.Random(seed)
        return lambda observation: str(rng.randint(1, 9))


class Dark(Price):
    """Text, one step: a number that only the reward shows. All episodes begin alike."""

    turns = 1

    instructions = "Name a number from 1 to 9."
    optimal_success = optimal_return = 1 / 9

    def judge(self, action):
        right = action == str(self.price)
        self.said = "Over."
        return float(right), right, action in map(str, range(1, 10))


class Waiter(Task):
    """Text, several steps, most of which need no action: wait until the light is green."""

    observation_space = action_space = AnyText()
    instructions = "Wait at red, go at green. Answer with wait or go."
    turns = 8

    def draw(self, rng):
        self.red = int(rng.integers(0, 3))

    def shown(self):
        return "The light is green." if self.red == 0 else "The light is red."

    def judge(self, action):
        right = action == "go" and self.red == 0
        if action == "go":
            self.left = 0
        self.red -= 1
        return float(right), right, action in ("wait", "go")

    def random_policy(self, seed):
        rng = random.Random(seed)
        return lambda observation: rng.choice(("wait", "go"))


class Walker(Task):
    """Text, with a state key that is Markov: walk to a place on a line."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "markov_state_key": True}
    observation_space = action_space = AnyText()
    instructions = "Walk to the goal. Answer with left or right."
    turns = 6

    def draw(self, rng):
        self.place, self.goal = 3, int(rng.choice([0, 1, 5, 6]))

    def shown(self):
        return f"You are at {self.place}, the goal is at {self.goal}."

    @property
    def state_key(self):
        return self.place, self.goal, self.left

    def judge(self, action):
        if valid := action in ("left", "right"):
            self.place += 1 if action == "right" else -1
        right = self.place == self.goal
        return float(right), right, valid

    def random_policy(self, seed):
        rng = random.Random(seed)
        return lambda observation: rng.choice(("left", "right"))

    def solver(self):
        def policy(observation):
            place, goal = (int(part.strip(",.")) for part in observation.split() if part.strip(",.").isdigit())
            return "left" if goal < place else "right"

        return policy


# --- Discrete ---


class Signs(Task):
    """Discrete with names, one step: turn as the sign says."""

    observation_space = spaces.Discrete(4)
    action_space = spaces.Discrete(4)
    action_names = ("north", "east", "south", "west")
    instructions = "The number of the wind is shown: 0 north, 1 east, 2 south, 3 west. Turn against it."

    def draw(self, rng):
        self.wind = int(rng.integers(4))

    def shown(self):
        return self.wind

    def judge(self, action):
        right = int(action) == (self.wind + 2) % 4
        return float(right), right, True


class Coin(Task):
    """Discrete, one step: a fair coin that nobody sees."""

    observation_space = spaces.Discrete(1)
    action_space = spaces.Discrete(2)
    instructions = "Guess the coin: 0 heads, 1 tails."
    optimal_success = optimal_return = 0.5

    def draw(self, rng):
        self.coin = int(rng.integers(2))

    def shown(self):
        return 0

    def judge(self, action):
        right = int(action) == self.coin
        return float(right), right, True


class Masked(Signs):
    """Discrete with a mask of int8: the move that is not allowed raises."""

    kind: Any = np.int8
    turns = 3

    def draw(self, rng):
        super().draw(rng)
        self.closed = (self.wind + 1) % 4

    def info(self):
        mask = np.ones(4, np.int8)
        mask[self.closed] = 0
        return {"action_mask": mask.tolist() if self.kind is list else mask.astype(self.kind)}

    def judge(self, action):
        if int(action) == self.closed:
            return 0.0, False, False
        return super().judge(action)


class Strictly(Masked):
    """Discrete with a mask, in which the environment raises at what the mask forbids."""

    kind = np.uint8

    def judge(self, action):
        assert int(action) != self.closed, "illegal move"
        return super().judge(action)


class Lift(Task):
    """Discrete that starts at 5, several steps: go to a floor."""

    observation_space = spaces.MultiDiscrete([4, 4])
    action_space = spaces.Discrete(4, start=5)
    instructions = "The first number is your floor, the second that of your guest. Floor 0 is button 5, 1 is 6 ..."
    turns = 2

    def draw(self, rng):
        self.here, self.guest = 0, int(rng.integers(1, 4))

    def shown(self):
        return np.array([self.here, self.guest])

    def judge(self, action):
        self.here = int(action) - 5
        right = self.here == self.guest
        return float(right), right, True


class Hundreds(Task):
    """Discrete with 300 actions whose numbers the rules explain."""

    observation_space = spaces.Box(0, 299, (1,), np.int64)
    action_space = spaces.Discrete(300)
    instructions = "Answer with a number that differs from the one shown by less than 50."

    def draw(self, rng):
        self.number = int(rng.integers(300))

    def shown(self):
        return np.array([self.number])

    def judge(self, action):
        right = abs(int(action) - self.number) < 50
        return float(right), right, True


class Catch(Task):
    """Discrete, several steps, truncated at the end: stay under the ball."""

    observation_space = spaces.Dict({"you": spaces.Discrete(5), "ball": spaces.Discrete(5)})
    action_space = spaces.Discrete(3)
    instructions = "Stay under the ball: 0 left, 1 stay, 2 right. You have to be there in the tenth turn."
    turns = 10
    ends = "truncated"

    def draw(self, rng):
        self.you, self.ball = 2, int(rng.integers(5))

    def shown(self):
        return {"you": self.you, "ball": self.ball}

    def step(self, action):
        self.you = min(4, max(0, self.you + int(action) - 1))
        if self.over:
            raise gym.error.ResetNeeded("the episode is over")
        self.left -= 1
        self.over = self.left == 0
        met = self.you == self.ball
        info = {"success": met and self.over}
        if self.left == 5:
            self.ball = int(self.np_random.integers(5))
        return self.shown(), 0.1 * met, False, self.over, info


class Fuse(Task):
    """Discrete, ends by itself after some steps, whatever is done: the returns differ by what is done."""

    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(3)
    instructions = "Answer each turn with the number shown. The fuse burns for two to four turns."

    def draw(self, rng):
        self.turns_left, self.number, self.right = int(rng.integers(2, 5)), int(rng.integers(3)), True

    def shown(self):
        return self.number

    def step(self, action):
        met = int(action) == self.number
        self.right = self.right and met
        self.turns_left -= 1
        self.number = int(self.np_random.integers(3))
        over = self.turns_left <= 0
        return self.shown(), float(met), over, False, {"success": over and self.right}
