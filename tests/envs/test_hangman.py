from collections import Counter
from typing import Any

import pytest

from gym_trl.envs.hangman import _MOST_MISSES, Hangman
from gym_trl.testing import play


@pytest.mark.full
@pytest.mark.parametrize(
    ("difficulty", "won", "missed"),
    [
        ("easy", 1768, [878, 627, 215, 48]),
        ("medium", 4303, [1278, 1283, 886, 493, 245, 118, 39, 12, 4]),
        ("hard", 1394, [193, 376, 465, 360, 228, 117, 39, 12, 4]),
    ],
)
def test_the_solver_misses_as_often_as_it_is_said(difficulty: str, won: int, missed: list[int]) -> None:
    env, misses, most = Hangman(difficulty=difficulty, misses=26), Counter[int](), dict[int, int]()
    for instance in range(env.num_instances):
        steps: list[Any] = play(env, env.solver(), options={"instance": instance})[1:]
        word = steps[-1][1].removeprefix("Correct: ").rstrip(".")
        count = sum(step[0] not in word for step in steps)
        misses[count] += 1
        most[len(word)] = max(count, most.get(len(word), 0))
    assert [misses[count] for count in range(max(misses) + 1)] == missed
    assert sum(missed[: Hangman(difficulty=difficulty).misses]) == won
    assert most.items() <= _MOST_MISSES.items()
