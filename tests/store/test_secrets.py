"""Secrets in URLs, options and errors."""

from __future__ import annotations

import pytest

import b2array
from b2array.store.secrets import leaks, redact, redact_url, secrets, unsigned


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
        ("https://host/run 1.b2nd?sig=abc failed", "https://host/run 1.b2nd failed"),
        ("cannot open s3://bucket/x. Is it there? See below", "cannot open s3://bucket/x. Is it there? See below"),
        ("{'Authorization': 'Basic dXNlcjpwYXNz'}", "{'Authorization': '***'}"),
    ],
)
def test_urls_lose_user_and_query(text, expected):
    assert redact(text) == expected


URLS = (
    ("s3://bucket/key", "s3://bucket/key"),
    ("https://host/run 1.b2nd?sig=a b&c='d'(e)", "https://host/run 1.b2nd"),
    ("https://host/run\t1\n.b2nd?sig=abc\ndef", "https://host/run\t1\n.b2nd"),
    ("https://host/it's (1).b2nd?sig=abc", "https://host/it's (1).b2nd"),
    ("https://me:pass word@host:80/path", "https://host:80/path"),
    ("s3://KEY:sec/r et?'x@bucket/a", "s3://bucket/a"),
    ("https://host:80?sig=a@b", "https://host:80"),
    ("https://host/x.h5#group/a b?sig=1", "https://host/x.h5#group/a b"),
    ("https://host/x.h5?sig=a b#group", "https://host/x.h5"),
    ("simplecache::https://user:pa ss@host/x y?sig=1 2", "simplecache::https://host/x y"),
    ("zip://in side?a=1::https://h/a b.zip?sig=1 2::x", "zip://in side::https://h/a b.zip::x"),
    ("zip://inside::/data/what?.zip", "zip://inside::/data/what?.zip"),
    ("/data/what?.b2nd", "/data/what?.b2nd"),
)


@pytest.mark.parametrize(("url", "expected"), URLS)
def test_a_url_loses_user_and_query_whatever_characters_it_has(url: str, expected: str) -> None:
    assert redact_url(url) == expected


@pytest.mark.parametrize("url", [url for url, expected in URLS if url != expected])
def test_no_secret_of_a_url_is_in_a_text_about_it(url: str) -> None:
    text = redact(f"cannot open {url}: refused", secrets(url, {}))
    assert not any(each in text for each in ("sig=a", "sig=1", "def", "pass", "pa ss", "word", "r et", "'d'", "1 2"))


def test_no_error_shows_the_query_of_a_url_with_a_space():
    with pytest.raises(OSError, match="Connect call failed") as caught:
        b2array.open("http://127.0.0.1:1/run 1.b2nd?sig=SuperSecretKey123&x=short")
    error: BaseException | None = caught.value
    while error is not None:
        assert "Secret" not in f"{error} {error!r}"
        assert "short" not in f"{error} {error!r}"
        error = error.__cause__ or error.__context__


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
        (
            "https://host/x?v=1&token=abc&long=12345678",
            {},
            {"abc", "12345678", "v=1&token=abc&long=12345678"},
        ),
        ("https://host/x?sig=a%2Fb", {}, {"sig=a%2Fb", "a%2Fb", "a/b", "a%252Fb"}),
        ("https://host/x?sig=a b#member", {}, {"sig=a b#member", "a b", "a%20b"}),
        ("zip://x::/data/what?key=word", {}, set()),
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


@pytest.mark.parametrize(
    "query",
    [
        "X-Amz-Algorithm=A&X-Amz-Credential=B&X-Amz-Date={}&X-Amz-Expires=9&X-Amz-Security-Token=C&X-Amz-Signature={}",
        "X-Goog-Credential=A&X-Goog-Date={}&X-Goog-Expires=9&X-Goog-SignedHeaders=host&X-Goog-Signature={}",
        "AWSAccessKeyId=A&Expires={}&Signature={}",
        "GoogleAccessId=A&Expires={}&Signature={}",
        "Policy={}&Signature={}&Key-Pair-Id=A",
        "sv=2026&ss=b&srt=sco&spr=https&st=2025&se={}&sp=r&sig={}",
        "token={}",
        "access_token={}",
        "api_key={}",
        "apikey={}",
        "X-Auth-Token={}",
        "password={}",
    ],
)
def test_a_url_that_was_signed_twice_is_one_place(query: str) -> None:
    one, two = (f"https://host/x?file=7&{query.format(n, f'secret{n}')}" for n in (1, 2))
    assert unsigned(one) == unsigned(two) == "https://host/x?file=7"


@pytest.mark.parametrize(
    "name",
    ["author", "design", "monkey", "key", "sort_key", "keyword", "Policy", "signal", "size", "session_no"],
)
def test_parameters_that_name_an_object_make_another_place(name: str) -> None:
    one, two = (f"https://host/x?{name}={n}&Expires=1" for n in (1, 2))
    assert unsigned(one) != unsigned(two)
