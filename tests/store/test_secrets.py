"""Secrets in URLs, options and errors."""

from __future__ import annotations

import pytest

from b2array.store.secrets import leaks, redact, secrets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket/key", "s3://bucket/key"),
        ("https://user:pass@host:80/path", "https://host:80/path"),
        ("ftp://user:p@ss@host/path", "ftp://host/path"),
        ("https://host/path?sig=a%2Fb&c=d", "https://host/path"),
        ("s3://KEY:sec/r+et@bucket/a@b", "s3://bucket/a@b"),
        ("http://host:8080/a@b, http://[::1]:80/a@b", "http://host:8080/a@b, http://[::1]:80/a@b"),
        ("s3://bucket/user@x, zip://a::http://host/x@y", "s3://bucket/user@x, zip://a::http://host/x@y"),
        ("simplecache::https://user:pass@host/x?sig=1", "simplecache::https://host/x"),
        (
            "cannot open 'https://host/x?sig=1' (or https://host/y?sig=2)",
            "cannot open 'https://host/x' (or https://host/y)",
        ),
        ("what? user@host", "what? user@host"),
        ("{'Authorization': 'Basic dXNlcjpwYXNz'}", "{'Authorization': '***'}"),
    ],
)
def test_urls_lose_user_and_query(text, expected):
    assert redact(text) == expected


def test_hidden_strings_are_covered_anywhere():
    assert redact("key=abc and abc", ["abc"]) == "key=*** and ***"


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("s3://bucket/x", {}, set()),
        ("s3://bucket/x", {"key": "kkkk", "secret": "ssss", "endpoint_url": "http://host"}, {"kkkk", "ssss"}),
        ("abfs://x", {"account_name": "public", "sas_token": "tttt"}, {"tttt"}),
        ("https://host", {"client_kwargs": {"headers": {"X": "hhhh"}, "trust_env": "yes"}}, {"hhhh"}),
        ("s3://KEY:sec/r+et@bucket/x", {}, {"sec/r+et", "S0VZOnNlYy9yK2V0"}),
        ("az://x", {"connection_string": "AccountName=n;AccountKey=kk=="}, {"AccountName=n;AccountKey=kk==", "kk=="}),
        ("https://host", {"client_kwargs": {"auth": ("name", "word")}}, {"name", "word"}),
        ("https://host/x?v=1&token=abc&long=12345678", {}, {"abc", "12345678"}),
        ("https://host/x?sig=a%2Fb", {}, {"a%2Fb", "a/b"}),
        ("ftp://me:pass%20word@host/x", {}, {"pass word", "bWU6cGFzcyB3b3Jk"}),
        ("zip://x::s3://bucket/x", {"s3": {"secret": "ssss"}}, {"ssss"}),
    ],
)
def test_secrets_are_found_by_their_names(url, options, expected):
    assert set(secrets(url, options)) == expected


def test_the_longest_secret_comes_first_so_that_no_part_stays():
    assert secrets("x", {"key": "abc", "secret": "abcdef"}) == ("abcdef", "abc")


def chained(secret):
    try:
        try:
            raise ValueError(secret)
        except ValueError as error:
            raise OSError("outer") from error
    except OSError as error:
        return error


def test_an_error_leaks_through_its_cause_too():
    assert leaks(chained("abc"), ["abc"])
    assert leaks(chained("https://host/x?sig=1"), [])
    assert not leaks(chained("abc"), ["def"])
    assert not leaks(None, ["abc"])
