"""Inspector of an environment: runs its checks one by one, and turns what they raise into findings."""

from gym_trl.env_checker.checks import CHECKS
from gym_trl.env_checker.play import Seen, describe_error
from gym_trl.env_checker.state_keys import keys_of
from gym_trl.env_checker.subject import Subject
from gym_trl.env_checker.survey import NotCheckedError
from gym_trl.errors import NotTextError, raise_interrupt
from gym_trl.report import Finding, problem, skipped


class Inspector(Subject):
    """Implementation of the checks, for a separate process and for tests.

    >>> from gym_trl.envs.echo import Echo
    >>> Inspector(Echo, episodes=5).look_at("end").got
    'after 1 turn'
    """

    def ready(self) -> None:
        """Return at once, to show that the process has started."""

    def look_at(self, name: str) -> Finding:
        """Return the finding of one of ``CHECKS``."""
        check = CHECKS[name]
        try:
            return check(self)
        except NotCheckedError as reason:
            return check.named(skipped(str(reason)))
        except NotTextError:
            return check.named(skipped("its values cannot be converted to text"))
        except BaseException as error:
            raise_interrupt(error)
            return check.named(problem(f"raised {describe_error(error)}", "catch the exception in the environment"))

    def games(self) -> list[list[Seen]] | None:
        """Return some episodes with random actions, for the comparison with another process."""
        try:
            return [game.seen for game in self.some]
        except NotCheckedError:
            return None

    def keys(self) -> list[list[str]]:
        """Return the state keys of the same episodes; none if they cannot be played or read."""
        try:
            return [keys_of(self.text_env, game.seed, game.actions, self.state_key) for game in self.some]
        except BaseException as error:  # "state key" reports it
            raise_interrupt(error)
            return []
