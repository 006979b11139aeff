"""URLs in messages, without secrets: a password stands before the host, a key in the path or query."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, unquote, urlsplit

SHORTEST_KEY = 6  # minimum length of a part of a path or query that may be a key


def _parts(url: str) -> SplitResult:
    """ValueError if the host is not certain: if a password contains / \\ ? or #, its user is parsed as the host, and
    the password as a port and a path."""
    parts = urlsplit(url)
    _ = parts.port  # ValueError if it is no number
    if "@" in parts.path + parts.query + parts.fragment or "\\" in url:
        raise ValueError("an @ stands behind the host, or there is a backslash")
    return parts


def without_secrets(url: str) -> str:
    """Scheme, host and port: messages show no more of an endpoint, because passwords stand before its host, keys in its
    path or query."""
    try:
        parts = _parts(url)
        host, port = parts.hostname, f":{parts.port}" if parts.port else ""
    except ValueError:
        host = None
    if not host:  # any part may be a key; only HOST:PORT, which lacks http://, is shown
        return url if re.fullmatch(r"[\w.-]+:\d{1,5}", url) else "the endpoint"
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
    secrets = {form for s in secrets if s for form in (s, unquote(s)) if len(form) > 1}
    for secret in sorted(secrets, key=len, reverse=True):
        text = re.sub("".join(map(_any_form, secret)), "...", text)
    return text


def _any_form(letter: str) -> str:
    """A pattern for a letter as libraries write it: unchanged, or percent-encoded once or twice, in upper or lower
    case."""
    return f"(?:{re.escape(letter)}|{''.join(f'%(?:25)?(?i:{byte:02x})' for byte in letter.encode())})"


def without_login(url: str) -> str:
    """The URL of a folder without user, password, query and fragment."""
    folder, *rest = re.split(r"[?#]", url, maxsplit=1)
    if any("@" in more for more in rest):  # a password may contain ? or #; then the text before that may be its user
        return without_secrets(url)
    return re.sub(r"://.*@", "://", folder)
