"""``gym-trl view``."""

import socket
from contextlib import suppress
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from typer import Argument, Option

from gym_trl.cli.errors import clear_errors, one_line
from gym_trl.cli.options import DebugOption, check_other
from gym_trl.cli.terminal import say, say_aside
from gym_trl.errors import ConfigError
from gym_trl.files import is_unwritable
from gym_trl.text.textify import counted

EXAMPLES = """
gym-trl view runs/first
gym-trl view runs/first --live
"""


@clear_errors
def view(
    run: Annotated[Path, Argument(metavar="RUN", help="Folder of a run, or a file of records.")],
    *,
    out: Annotated[Path | None, Option(help="File to write. Default: view.html in the folder of the run.")] = None,
    live: Annotated[bool, Option("--live", help="Serve the page at 127.0.0.1 and keep it up to date.")] = False,
    port: Annotated[int, Option(min=0, max=65_535, help="Port of --live; 0 selects a free one.")] = 0,
    tokenizer: Annotated[Path | None, Option(help="Folder of the tokenizer. Default: the run's own.")] = None,
    debug: DebugOption = False,
) -> None:
    """Write a run as an HTML page with its curves and its episodes.

    Episodes are shown with every token. The page works offline.
    """
    if live and out is not None:
        raise ConfigError("--live serves the page instead of writing it: remove --out")
    if port and not live:
        raise ConfigError(f"--port {port} requires --live")
    if live:
        from gym_trl.viewer.live import LiveServer

        try:
            server = LiveServer(run, port=port, tokenizer=tokenizer)
        except OSError as error:
            raise ConfigError(f"cannot listen at 127.0.0.1:{port}: {one_line(error)}; give another --port") from error
        with suppress(KeyboardInterrupt):
            say(f"Serving {run} at {server.url}; press Ctrl-C to stop.")
            say(_forwarding(server.url))
            server.serve()
        return
    from gym_trl.viewer.page import write_page

    page = out or (run / "view.html" if run.is_dir() else run.with_suffix(".html"))
    check_other(run, page)
    try:
        counts = write_page(run, page, tokenizer=tokenizer)
    except OSError as error:
        if out is not None or error.filename != str(page) or not is_unwritable(error):
            raise
        raise ConfigError(f"{one_line(error)}; give --out FILE, or --live") from error
    if counts["broken"]:
        say_aside(f"Skipped {counted(counts['broken'], 'line')} that could not be read as records.")
    say(f"Wrote {counted(counts['episodes'], 'episode')} to {page} ({counts['bytes'] / 1e6:.1f} MB).")


def _forwarding(url: str) -> str:
    """Return how a browser on another machine reaches a server here; the port must be the same there.

    >>> _forwarding("http://127.0.0.1:8000/").replace(socket.gethostname(), "HOST")
    'From another machine: ssh -N -L 8000:127.0.0.1:8000 HOST, and open http://127.0.0.1:8000/ there.'
    """
    port = urlsplit(url).port
    return f"From another machine: ssh -N -L {port}:127.0.0.1:{port} {socket.gethostname()}, and open {url} there."
