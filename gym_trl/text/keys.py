"""Keys and passwords of servers, which are sent where they belong and shown nowhere."""

from urllib.parse import urlsplit

from gym_trl.errors import ConfigError


def bearer(api_key: str | None) -> dict[str, str]:
    """Return the header for a key.

    >>> bearer("sk-1234"), bearer(None)
    ({'Authorization': 'Bearer sk-1234'}, {})

    Raises:
        ConfigError: The key has characters that a header cannot have; the message does not contain the key.
    """
    key = (api_key or "").strip()  # a key from a file ends with a line break
    if not all("!" <= character <= "~" for character in key):
        raise ConfigError("the server's key has characters that a header cannot contain, such as spaces or quotes")
    return {"Authorization": f"Bearer {key}"} if key else {}


def redact(text: str, authorization: str | None) -> str:
    """Return a server's message without the key, which some servers repeat when they reject it.

    >>> redact("Incorrect API key provided: sk-1234.", "Bearer sk-1234")
    'Incorrect API key provided: ***.'
    """
    key = (authorization or "").rpartition(" ")[2]
    return text.replace(key, "***") if len(key) >= 4 else text


def without_password(url: str) -> str:
    """Return an address without its password, for display.

    >>> without_password("https://me:secret@example.com/v1"), without_password("http://localhost:8000")
    ('https://***@example.com/v1', 'http://localhost:8000')
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an address that cannot be read"
    _, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"***@{host}").geturl() if at else url
