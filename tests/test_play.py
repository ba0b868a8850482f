from typer.testing import CliRunner

from gym_trl.cli.app import app


def said(*lines: str, env_id: str = "TrlEnv/GuessNumber-v0", options: tuple[str, ...] = ("--seed", "1")) -> str:
    result = CliRunner().invoke(app, ["play", env_id, *options], input="".join(f"{line}\n" for line in lines))
    assert result.exit_code == 0, result.output
    return result.output


def test_a_session_that_is_left_says_its_turns_and_its_return() -> None:
    output = said("1", "quit", options=("--env", "high=8", "--seed", "1"))
    assert "Guess 1 to 8 in 6 tries.\n> 1\nHigher.\n" in output
    assert output.endswith("\n\nLeft after 1 turn, return 0.\n")


def test_output_that_is_no_terminal_has_no_colours() -> None:
    assert "\x1b" not in said("1", "quit")
