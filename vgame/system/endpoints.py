"""URLs as messages show them: passwords stand before a host, keys in a path or query."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, quote, unquote, urlsplit

SHORTEST_KEY = 6  # letters of a part of a path or query that may be a key


def _parts(url: str) -> SplitResult:
    """ValueError where the host is not certain: a password with / ? or # in it reads as a path, and its user as the
    host."""
    parts = urlsplit(url)
    if "@" in parts.path + parts.query + parts.fragment:
        raise ValueError("an @ stands behind the host")
    return parts


def without_secrets(url: str) -> str:
    """Scheme, host and port, which is all that messages say of an endpoint: passwords stand before its host, keys in
    its path or query."""
    try:
        parts = _parts(url)
        host, port = parts.hostname, f":{parts.port}" if parts.port else ""
    except ValueError:
        host = None
    if not host:  # it cannot be told from the rest
        return "the endpoint" if set("@?#/") & set(url.removeprefix("http://").removeprefix("https://")) else url
    hidden = "/..." if parts.path.strip("/") or parts.query or parts.fragment else ""
    return f"{parts.scheme}://{host}{port}{hidden}"


def hide_secrets(text: str, url: str) -> str:
    """The text of an error, which may quote a URL or parts of it, without its secrets."""
    try:
        parts = _parts(url)
    except ValueError:
        return "it cannot be read"
    secrets = {url, parts.path, parts.query, parts.fragment, parts.username, parts.password}
    pieces = re.split("[/?&=;#@:]", f"{parts.path}?{parts.query}#{parts.fragment}")
    secrets |= {s for s in pieces if len(s) >= SHORTEST_KEY}
    secrets = {form(s) for s in secrets if s for form in (str, quote, unquote)}
    for secret in sorted((s for s in secrets if len(s) > 1), key=len, reverse=True):
        text = text.replace(secret, "...")
    return text


def without_login(url: str) -> str:
    """The URL of a folder without user, password, query and fragment."""
    folder, *rest = re.split(r"[?#]", url, maxsplit=1)
    if any("@" in more for more in rest):  # a password with ? or # in it: what is before it may be its user
        return without_secrets(url)
    return re.sub(r"://.*@", "://", folder)
