"""``gym-trl view``."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from gym_trl.cli.errors import clear_errors, one_line
from gym_trl.cli.options import DebugOption, check_other
from gym_trl.cli.terminal import say, say_aside
from gym_trl.errors import ConfigError
from gym_trl.files import is_unwritable
from gym_trl.text import counted

EXAMPLES = """
gym-trl view runs/first
gym-trl view runs/first --text 17
"""


@clear_errors
def view(
    run: Annotated[Path, Argument(metavar="RUN", help="Folder of a run, or a file of records.")],
    *,
    out: Annotated[Path | None, Option(help="File to write. Default: view.html in the folder of the run.")] = None,
    tokenizer: Annotated[Path | None, Option(help="Folder of the tokenizer. Default: the run's own.")] = None,
    text: Annotated[
        int | None,
        Option(metavar="N", help="Print episode N in the terminal instead; -1 is the last one."),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Write a run as an HTML page with its curves and its episodes.

    Episodes are shown with every token. The page works offline.
    """
    if text is not None:
        from gym_trl.cli.episode_text import print_episode

        if out is not None:
            raise ConfigError("--text prints an episode instead of writing the page: remove --out")
        print_episode(run, text)
        return
    from gym_trl.viewer.page import write_page

    page = out or (run / "view.html" if run.is_dir() else run.with_suffix(".html"))
    check_other(run, page)
    try:
        counts = write_page(run, page, tokenizer=tokenizer)
    except OSError as error:
        if out is not None or error.filename != str(page) or not is_unwritable(error):
            raise
        raise ConfigError(f"{one_line(error)}; give --out FILE") from error
    if counts["broken"]:
        say_aside(f"Skipped {counted(counts['broken'], 'line')} that could not be read as records.")
    say(f"Wrote {counted(counts['episodes'], 'episode')} to {page} ({counts['bytes'] / 1e6:.1f} MB).")
