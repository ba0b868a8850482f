"""Keys and passwords of servers: they travel in headers, and are shown nowhere."""

from urllib.parse import urlsplit

from gym_trl.errors import ConfigError

_SHORTEST = 4


def bearer(api_key: str | None) -> dict[str, str]:
    """The header that carries a key.

    >>> bearer("sk-1234"), bearer(None)
    ({'Authorization': 'Bearer sk-1234'}, {})

    Raises:
        ConfigError: a header cannot carry it; the message does not say what it is.
    """
    key = (api_key or "").strip()  # a key that was read from a file ends with a new line
    if not all("!" <= character <= "~" for character in key):
        raise ConfigError("the key of the server has characters that no header can carry, such as spaces or quotes")
    return {"Authorization": f"Bearer {key}"} if key else {}


def hidden(text: str, authorization: str | None) -> str:
    """What a server said, without the key that it was sent: some repeat it when they refuse it.

    >>> hidden("Incorrect API key provided: sk-1234.", "Bearer sk-1234")
    'Incorrect API key provided: ***.'
    """
    key = (authorization or "").rpartition(" ")[2]
    return text.replace(key, "***") if len(key) >= _SHORTEST else text


def without_password(url: str) -> str:
    """An address as it may be shown.

    >>> without_password("https://me:secret@example.com/v1"), without_password("http://localhost:8000")
    ('https://***@example.com/v1', 'http://localhost:8000')
    """
    try:
        parts = urlsplit(url)
        _, at, host = parts.netloc.rpartition("@")
    except ValueError:
        return "an address that cannot be read"
    return parts._replace(netloc=f"***@{host}").geturl() if at else url
