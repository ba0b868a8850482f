"""Check of an environment for test suites."""

from gym_trl.check import Report, check
from gym_trl.registration import EnvSource


def check_text_env(env: EnvSource, *, episodes: int = 20) -> None:
    """Check that an environment is fit to train on: ``gym_trl.check.check`` finds no error.

    >>> check_text_env("TrlEnv/Echo-v0")
    >>> from gym_trl.envs.echo import Echo
    >>> check_text_env(lambda: Echo(turns=3, alphabet="ab"))

    Raises:
        AssertionError: There is an error; the report is the message.
    """
    report = check(env, episodes=episodes)
    assert isinstance(report, Report)
    if report.failed:
        raise AssertionError(str(report))
