"""Errors of the commands, in one line."""


def one_line(error: Exception) -> str:
    """Return the message of an error without line breaks."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return " ".join(str(error).split())
