"""Keep secrets out of messages: passwords, keys and signatures in URLs, storage options and errors."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

__all__ = ["leaks", "public", "redact", "redact_url", "secrets", "unsigned"]

# URLs allow no slashes in a password, but users write S3 keys with slashes there. A port has no slashes.
_USER = re.compile(r"(?<=://)(?:[^/?\s'\"]*|[^/@?\s'\":\[]+:(?!:|\d+/)[^@?\s'\"]*)@")
_QUERY = re.compile(r"(://[^'\"?]*)\?[^\s'\")]+")
# In a text that is one URL, white space and quotes belong to it, and a password may even have question marks.
_USER_OF_URL = re.compile(r"(?<=://)(?:[^/?]*|[^/@?:\[]+:(?!:|\d+(?:[/?#]|$))[^@]*)@")
_AUTHORIZATION = re.compile(r"(authorization\W+)(?:\w+\s+)?[^\s'\",)]+", re.IGNORECASE)
_SECRET_NAME = re.compile(
    r"key|secret|token|passw|credential|auth|sas|sig|cookie|headers|connection_string", re.IGNORECASE
)
_SIGNED = re.compile(
    # A parameter "key" usually names the object, and "design" and "author" are words.
    r"x-(amz|goog)-.*|expires|awsaccesskeyid|googleaccessid|key-pair-id|hdn(ea|tl|ts)"
    r"|(.*[-_.])?(((api|access|account|auth|private|secret|subscription)[-_.]?key)|((api|access|auth|sas)?[-_.]?token)"
    r"|secret|passw(or)?d|credentials?|auth|authorization|sas|sig|signature)",
    re.IGNORECASE,
)
_SIGNED_BY_AZURE = re.compile("s[a-z]{1,4}")
_LONG = 8  # a query parameter of this length may be a signature, whatever its name is
_SHORTEST = 3  # shorter strings occur in texts by chance


def redact(text: str, hidden: Sequence[str] = ()) -> str:
    """Remove user, password and query string from every URL in a text, and all `hidden` strings.

    In a text, the end of a URL cannot be determined. For a URL alone, use `redact_url`; in a text about a URL, pass its
    `secrets` as `hidden`.

    Examples
    --------
    >>> redact("cannot open s3://key:secret@bucket/x and https://host/y?signature=abc")
    'cannot open s3://bucket/x and https://host/y'
    """
    # Before the patterns, which may remove only a part of a secret.
    for each in hidden:
        text = text.replace(each, "***")
    return _AUTHORIZATION.sub(r"\1***", _QUERY.sub(r"\1", _USER.sub("", text)))


def redact_url(url: str) -> str:
    """Return a URL, or a chain of URLs, without users, passwords and query strings. Paths stay as they are.

    Examples
    --------
    >>> redact_url("zip://a b::s3://key:secret@bucket/run 1.zip?signature=a 'b'")
    'zip://a b::s3://bucket/run 1.zip'
    """
    return "::".join(_without_query(link) for link in _USER_OF_URL.sub("", url).split("::"))


def _without_query(link: str) -> str:
    return link.partition("?")[0] if "://" in link else link


def unsigned(url: str) -> str:
    """Return a URL without its user, and without the parameters of its query that belong to a signature or a secret.

    URLs of the same object that were signed at different times are then equal. All other parameters stay, because they
    may name another object.

    Examples
    --------
    >>> unsigned("https://user:password@host/x?file=1&X-Amz-Date=20261126&X-Amz-Signature=abc&api_key=1")
    'https://host/x?file=1'
    >>> unsigned("https://host/x?sv=2026&se=tomorrow&sp=r&sig=abc")
    'https://host/x'
    """
    base, mark, query = _USER_OF_URL.sub("", url).partition("?")
    parameters = query.split("&") if mark else []
    names = [each.partition("=")[0] for each in parameters]
    kept = []
    for each, name in zip(parameters, names, strict=True):
        of_azure = "sig" in names and _SIGNED_BY_AZURE.fullmatch(name)
        of_cloudfront = "Key-Pair-Id" in names and name == "Policy"
        if not (of_azure or of_cloudfront or _SIGNED.fullmatch(name)):
            kept.append(each)
    return f"{base}?{'&'.join(kept)}" if kept else base


def secrets(url: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the secret strings in a URL and its options, the longest first.

    Examples
    --------
    >>> secrets("https://host/x?sig=abc", {"client_kwargs": {"headers": {"X-Api-Key": "12345"}}})
    ('sig=abc', '12345', 'abc')
    """
    values = {each for each in (*_in_url(url), *_in_options(options)) if len(each) >= _SHORTEST}
    return tuple(sorted(values, key=lambda each: (-len(each), each)))


def _in_url(url: str) -> Iterator[str]:
    for match in _USER_OF_URL.findall(url):
        user = unquote(match[:-1])
        yield user.partition(":")[2]
        # The header of a request has the user in this form.
        yield base64.b64encode(user.encode()).decode()
    for link in _USER_OF_URL.sub("", url).split("::"):
        query = link.partition("?")[2] if "://" in link else ""
        yield query
        for parameter in query.partition("#")[0].split("&"):
            name, _, value = parameter.partition("=")
            if len(value) >= _LONG or _SECRET_NAME.search(name):
                yield from (value, unquote(value), quote(value), quote(value, safe=""))


def _in_options(options: Mapping[str, Any], hidden: bool = False) -> Iterator[str]:
    for name, value in options.items():
        secret = hidden or _SECRET_NAME.search(str(name)) is not None
        if isinstance(value, Mapping):
            yield from _in_options(value, secret)
        elif secret and isinstance(value, str):
            yield value
            # A connection string of Azure has several pairs of names and values.
            pairs = (part.partition("=") for part in value.split(";"))
            yield from (part for key, _, part in pairs if _SECRET_NAME.search(key))
        elif secret and isinstance(value, tuple | list):
            # For example, user and password.
            yield from (each for each in value if isinstance(each, str))


def public(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options without the secret ones. Of values that are not plain, only the type remains.

    Examples
    --------
    >>> public({"endpoint": "https://host", "secret": "abc", "client_kwargs": {"headers": {}, "verify": True}})
    {'client_kwargs': {'verify': True}, 'endpoint': 'https://host'}
    """
    plain: dict[str, Any] = {}
    for name in sorted(map(str, options)):
        value = options.get(name)
        if _SECRET_NAME.search(name):
            continue
        if isinstance(value, Mapping):
            plain[name] = public(value)
        else:
            plain[name] = value if isinstance(value, str | int | float | None) else type(value).__qualname__
    return plain


def leaks(error: BaseException | None, hidden: Sequence[str]) -> bool:
    """Return whether an exception or one of its causes shows a secret, or a URL with a user or a query string."""
    while error is not None:
        text = f"{error!s} {error!r}"
        if redact(text, hidden) != text:
            return True
        error = error.__cause__ or error.__context__
    return False
