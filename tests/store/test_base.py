"""What every kind of store does, on local files, in memory, and through fsspec."""

from __future__ import annotations

import io
import pickle
import tarfile
import threading
import zipfile
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest
from clouds import KINDS as CLOUDS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lengths import examples

from b2array import config
from b2array.errors import ConflictError, FormatError, ReadOnlyError, UnsupportedError
from b2array.store import base
from b2array.store.base import Head, Store, Version
from b2array.store.http import HttpStore
from b2array.store.local_store import LocalStore
from b2array.store.memory import MemoryStore
from b2array.store.open import open_store
from b2array.store.remote import CachingStore, FsspecStore
from b2array.store.s3 import S3Store
from b2array.store.shared_memory import SharedMemoryStore
from b2array.store.spans import Span

CONTENT = bytes(range(256)) * 40
SPARSE = {
    "chunks.b2frame": b"the index",
    "00000000.chunk": CONTENT,
    "00000001.chunk": b"",
    "0000000A.chunk": CONTENT[7:],
}

ALL = ("local", "memory", "shared", *CLOUDS, "http", "zip", "simplecache")
WRITABLE = ("local", "memory", "shared", *CLOUDS)
APPENDABLE = ("local", "memory")


class Maker(NamedTuple):
    kind: str
    sparse: Callable[[Mapping[str, bytes]], Store]
    single: Callable[[bytes], Store]


@pytest.fixture
def maker(request, tmp_path):
    return MAKERS[request.param](request.param, request, tmp_path)


def make_memory(kind, request, tmp_path):
    return Maker(kind, MemoryStore, lambda content: MemoryStore({"": content}))


def make_local(kind, request, tmp_path):
    def sparse(objects):
        directory = tmp_path / "array.b2nd"
        directory.mkdir()
        for name, content in objects.items():
            (directory / name).write_bytes(content)
        return open_store(directory)

    def single(content):
        (tmp_path / "array.b2frame").write_bytes(content)
        return open_store(tmp_path / "array.b2frame")

    return Maker(kind, sparse, single)


def make_shared(kind, request, tmp_path):
    root = f"memory://{tmp_path.name}"
    return written_by_itself(kind, f"{root}/array.b2nd", f"{root}/array.b2frame", {})


def make_cloud(kind, request, tmp_path):
    cloud = request.getfixturevalue("cloud_of")(kind)
    bucket = cloud.make_bucket(next(request.getfixturevalue("_bucket_names")))
    return written_by_itself(kind, f"{bucket}/a/array.b2nd", f"{bucket}/a/array.b2frame", cloud.options)


def written_by_itself(kind, prefix, url, options):
    def sparse(objects):
        store = open_store(prefix, storage_options=options)
        for name, content in objects.items():
            store.create(name, content)
        return store

    def single(content):
        store = open_store(url, storage_options=options)
        store.create("", content)
        return store

    return Maker(kind, sparse, single)


def make_http(kind, request, tmp_path, chain="", options=None):
    server = request.getfixturevalue("http")

    def sparse(objects):
        server.objects |= {f"array.b2nd/{name}": content for name, content in objects.items()}
        return open_store(chain + server.url_of("array.b2nd"), storage_options=options)

    def single(content):
        server.objects["array.b2frame"] = content
        return open_store(chain + server.url_of("array.b2frame"), storage_options=options)

    return Maker(kind, sparse, single)


def make_simplecache(kind, request, tmp_path):
    return make_http(kind, request, tmp_path, "simplecache::", {"simplecache": {"cache_storage": str(tmp_path)}})


def make_zip(kind, request, tmp_path):
    def store(inside, objects):
        with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
            for name, content in objects.items():
                archive.writestr(name, content)
        return open_store(f"zip://{inside}::{tmp_path / 'archive.zip'}")

    return Maker(
        kind,
        lambda objects: store("array.b2nd", {f"array.b2nd/{name}": content for name, content in objects.items()}),
        lambda content: store("array.b2frame", {"array.b2frame": content}),
    )


MAKERS = {
    "local": make_local,
    "memory": make_memory,
    "shared": make_shared,
    **dict.fromkeys(CLOUDS, make_cloud),
    "http": make_http,
    "zip": make_zip,
    "simplecache": make_simplecache,
}

on = lambda kinds: pytest.mark.parametrize("maker", kinds, indirect=True)  # noqa: E731


def read(store, *spans, **options):
    return [bytes(view) for view in store.read([Span(*span) for span in spans], **options)]


def content_of(store, name):
    return read(store, (name, 0, store.stamp(name).size))[0]


# ---- reading ----


@on(ALL)
def test_spans_of_several_objects_are_read_in_the_order_wanted(maker):
    store = maker.sparse(SPARSE)
    spans = [
        ("0000000A.chunk", 10, 20),
        ("00000000.chunk", 9000, 9100),
        ("00000000.chunk", 0, 5),
        ("chunks.b2frame", 4, 9),
    ]
    assert read(store, *spans) == [SPARSE[name][start:stop] for name, start, stop in spans]


@on(ALL)
def test_the_only_object_has_no_name(maker):
    store = maker.single(CONTENT)
    assert read(store, ("", 100, 200), ("", 0, len(CONTENT))) == [CONTENT[100:200], CONTENT]


@on(ALL)
def test_what_is_read_can_be_written_into_without_changing_the_object(maker):
    store = maker.single(CONTENT)
    (view,) = store.read([Span("", 0, 100)])
    view[:] = bytes(100)
    assert read(store, ("", 0, 100)) == [CONTENT[:100]]


@on(ALL)
def test_empty_spans_and_no_spans_are_read_as_nothing(maker):
    store = maker.single(CONTENT)
    assert read(store) == []
    assert read(store, ("", 0, 0), ("", 30, 33), ("", 5000, 5000)) == [b"", CONTENT[30:33], b""]


@on(ALL)
@pytest.mark.parametrize("start", [len(CONTENT) - 10, len(CONTENT), len(CONTENT) + 1000])
def test_a_span_beyond_the_end_is_a_format_error_that_counts_bytes(maker, start):
    store = maker.single(CONTENT)
    found = max(0, len(CONTENT) - start)
    with pytest.raises(FormatError, match=f"expected 20 bytes at {start}, found {found}$"):
        read(store, ("", start, start + 20))


@on(("local", "memory"))
def test_a_damaged_size_does_not_take_memory(maker):
    store = maker.single(CONTENT)
    with pytest.raises(FormatError):
        read(store, ("", 0, 2**62))


@on(ALL)
@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4), (-5, -1)])
def test_a_span_that_is_none_is_a_format_error(maker, start, stop):
    with pytest.raises(FormatError, match="expected a range of bytes"):
        read(maker.single(CONTENT), ("", start, stop))


@on(ALL)
def test_a_missing_object_is_named(maker):
    store = maker.sparse(SPARSE)
    with pytest.raises(FileNotFoundError) as caught:
        read(store, ("00000000.chunk", 0, 1), ("00000007.chunk", 0, 1))
    assert caught.value.filename.endswith("00000007.chunk")


@on(ALL)
def test_heads_of_existing_and_missing_objects_come_together(maker):
    store = maker.sparse(SPARSE)
    single, index, missing, empty = store.head(["", "chunks.b2frame", "nothing", "00000001.chunk"], 64)
    assert isinstance(single, OSError)
    assert isinstance(missing, FileNotFoundError)
    assert isinstance(index, Head)
    assert bytes(index.data) == b"the index"
    assert isinstance(empty, Head)
    assert len(empty.data) == 0
    if index.stamp is not None:
        assert index.stamp == store.stamp("chunks.b2frame")


@on(ALL)
def test_a_head_can_begin_anywhere(maker):
    store = maker.single(CONTENT)
    heads = [
        store.head([""], 64, offset=offset)[0] for offset in (0, 100, len(CONTENT) - 3, len(CONTENT), len(CONTENT) + 9)
    ]
    assert [bytes(head.data) for head in heads] == [CONTENT[:64], CONTENT[100:164], CONTENT[-3:], b"", b""]


@on(ALL)
@pytest.mark.parametrize("last", [100, len(CONTENT), 2 * len(CONTENT)])
def test_the_end_of_an_object_comes_with_its_beginning_where_servers_are_asked_for_it(maker, last):
    (head, missing), tail = maker.single(CONTENT).ends(["", "chunks.b2frame"], 64, last)
    assert bytes(head.data) == CONTENT[:64]
    assert isinstance(missing, OSError)
    assert (tail is not None) == (maker.kind in ("s3", "gcs", "s3 obstore", "gcs obstore", "http"))
    if tail is not None:
        assert bytes(tail.data) == CONTENT[-last:]
        assert (tail.start, tail.version) == (max(0, len(CONTENT) - last), head.stamp.version)


@on(ALL)
def test_a_directory_and_an_empty_object_have_no_end(maker):
    (single, index), tail = maker.sparse(SPARSE).ends(["", "chunks.b2frame"], 64, 100)
    assert isinstance(single, OSError)
    assert bytes(index.data) == b"the index"
    assert tail is None
    assert maker.sparse(SPARSE).ends(["00000001.chunk"], 64, 100)[1] is None if maker.kind == "http" else True


@on(WRITABLE)
def test_heads_carry_stamps_where_they_cost_nothing(maker):
    store = maker.single(CONTENT)
    (head,) = store.head([""], 64)
    assert head.stamp.size == len(CONTENT)
    assert head.stamp == store.stamp("")


@on(ALL)
def test_a_stamp_has_the_size_and_stays_while_nothing_changes(maker):
    store = maker.single(CONTENT)
    assert store.stamp("").size == len(CONTENT)
    assert store.stamp("") == store.stamp("")


@on(ALL)
def test_the_stamp_of_nothing_is_an_error(maker):
    store = maker.sparse(SPARSE)
    with pytest.raises(FileNotFoundError):
        store.stamp("nothing")


@on((*WRITABLE, "zip"))
def test_the_listing_has_names_and_sizes(maker):
    store = maker.sparse(SPARSE)
    assert {name: size for name, (size, _) in store.listing().items()} == {
        name: len(content) for name, content in SPARSE.items()
    }


@on(WRITABLE)
def test_the_listing_of_one_object_has_no_name_but_a_time(maker):
    (name, (size, modified)) = next(iter(maker.single(CONTENT).listing().items()))
    assert (name, size) == ("", len(CONTENT))
    assert modified > 1_600_000_000


@on(ALL)
def test_a_pickled_store_reads_the_same(maker):
    store = maker.single(CONTENT)
    again = pickle.loads(pickle.dumps(store))
    assert read(again, ("", 5, 50)) == [CONTENT[5:50]]
    assert (again.url, again.is_prefix, again.can) == (store.url, store.is_prefix, store.can)
    assert read(again, ("", 5, 50), expected=store.stamp("").version) == [CONTENT[5:50]]


@on(ALL)
def test_a_closed_store_can_be_used_again(maker):
    store = maker.single(CONTENT)
    read(store, ("", 0, 1))
    store.close()
    store.close()
    assert read(store, ("", 0, 10)) == [CONTENT[:10]]


@on(ALL)
def test_threads_share_a_store(maker):
    store = maker.sparse(SPARSE)
    wrong = []

    def work(seed):
        for number in range(10):
            start = (seed * 997 + number * 131) % 9000
            spans = [("00000000.chunk", start, start + 50), ("0000000A.chunk", start, start + 99)]
            if read(store, *spans) != [SPARSE[name][first:last] for name, first, last in spans]:
                wrong.append(spans)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def archived(kind, path):
    """Make an archive of the sparse object, and return its URL."""
    if kind == "tar":
        with tarfile.open(path, "w") as archive:
            for name, content in SPARSE.items():
                member = tarfile.TarInfo(f"array.b2nd/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return f"tar://array.b2nd::{path}"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if kind == "deflated" else zipfile.ZIP_STORED) as archive:
        for name, content in SPARSE.items():
            archive.writestr(f"array.b2nd/{name}", content)
    return f"zip://array.b2nd::{path}"


@pytest.mark.parametrize("chain", ["", "simplecache::"])
@pytest.mark.parametrize("kind", ["stored", "deflated", "tar"])
def test_threads_that_read_one_archive_get_the_bytes_that_they_ask_for(tmp_path, kind, chain):
    """Python 3.12.1 and 3.13.0 forget the lock of a zip file when they seek in a stored member."""
    url = archived(kind, tmp_path / "archive")
    wrong = []

    def work(store, seed):
        for number in range(60):
            start = (seed * 997 + number * 131) % 9000
            spans = [("00000000.chunk", start, start + 50), ("0000000A.chunk", start, start + 99)]
            try:
                found = read(store, *spans)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is not the bytes
                found = error
            if found != [SPARSE[name][first:last] for name, first, last in spans]:
                wrong.append(found)

    for number in range(5):
        options = {"simplecache": {"cache_storage": f"{tmp_path}/cache{number}"}} if chain == "simplecache::" else {}
        store = open_store(chain + url, storage_options=options)
        threads = [threading.Thread(target=work, args=(store, seed)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def cached_single(maker, made={}):  # noqa: B006 - Hypothesis runs a test many times with one fixture
    if made.get("maker") is not maker:
        made.update(maker=maker, store=maker.single(CONTENT))
    return made["store"]


spans_of_content = st.lists(
    st.tuples(st.integers(0, len(CONTENT)), st.integers(0, 3000)).map(
        lambda pair: Span("", pair[0], min(len(CONTENT), pair[0] + pair[1]))
    ),
    max_size=12,
)


@on(("local", "memory", "shared", "zip"))
@given(spans=spans_of_content, gap=st.sampled_from([0, 100, 10**6]))
@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_spans_are_read_whatever_the_gap(maker, spans, gap):
    store = cached_single(maker)
    with config.using(coalesce_gap=gap):
        assert read(store, *spans) == [CONTENT[start:stop] for _, start, stop in spans]


@on(ALL)
@pytest.mark.parametrize("step", [len(CONTENT), len(CONTENT) // 2, 999])
def test_an_object_is_copied_in_pieces(maker, monkeypatch, step):
    monkeypatch.setattr(base, "_STEP", step)
    found = [bytes(piece) for piece in maker.single(CONTENT).pieces()]
    assert b"".join(found) == CONTENT
    assert max(map(len, found)) == step


def test_pieces_are_not_of_two_states(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "_STEP", 100)
    store = open_store(tmp_path / "file")
    store.create("", CONTENT)
    pieces = store.pieces()
    next(pieces)
    store.replace("", CONTENT[::-1])
    with pytest.raises(ConflictError, match="changed since it was opened"):
        list(pieces)


def test_pieces_of_an_object_of_unknown_size_end_where_it_ends(maker_of_unknown_size, monkeypatch):
    monkeypatch.setattr(base, "_STEP", 1000)
    assert b"".join(maker_of_unknown_size(CONTENT).pieces()) == CONTENT


@pytest.fixture
def maker_of_unknown_size():
    class Unsized(MemoryStore):
        def stamp(self, name):
            return super().stamp(name)._replace(size=-1)

    return lambda content: Unsized({"": content})


# ---- writing ----


@on(WRITABLE)
def test_what_is_created_is_read(maker):
    store = maker.sparse({})
    stamp = store.create("0000000A.chunk", [b"one ", bytearray(b"two "), memoryview(b"three")])
    assert content_of(store, "0000000A.chunk") == b"one two three"
    assert stamp == store.stamp("0000000A.chunk")


@on(WRITABLE)
def test_creating_what_exists_changes_nothing(maker):
    store = maker.sparse({"a": b"before"})
    with pytest.raises(FileExistsError):
        store.create("a", b"after")
    assert content_of(store, "a") == b"before"
    assert {*store.listing()} == {"a"}


@on(WRITABLE)
def test_one_of_many_creators_wins(maker):
    store = maker.sparse({"other": b""})
    outcomes = []

    def work(number):
        try:
            store.create("a", str(number).encode() * 1000)
            outcomes.append(number)
        except FileExistsError:
            outcomes.append(None)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = (number for number in outcomes if number is not None)
    assert len(outcomes) == 6
    assert content_of(store, "a") == str(winner).encode() * 1000


@on(WRITABLE)
def test_replacing_gives_a_new_version(maker):
    store = maker.single(b"before")
    before = store.stamp("")
    after = store.replace("", [b"af", b"ter"])
    assert content_of(store, "") == b"after"
    assert after == store.stamp("")
    assert after.version != before.version


@on(WRITABLE)
def test_replacing_what_does_not_exist_creates_it(maker):
    store = maker.sparse({"other": b""})
    store.replace("a", b"new")
    assert content_of(store, "a") == b"new"


@on(WRITABLE)
def test_the_expected_version_is_replaced(maker):
    store = maker.single(b"before")
    stamp = store.stamp("")
    for content in (b"after", b"after that"):
        stamp = store.replace("", content, expected=stamp.version)
        assert content_of(store, "") == content


@on(WRITABLE)
def test_another_version_than_expected_is_a_conflict_and_stays(maker):
    store = maker.single(b"before")
    mine = store.stamp("")
    store.replace("", b"theirs")
    with pytest.raises(ConflictError):
        store.replace("", b"mine", expected=mine.version)
    assert content_of(store, "") == b"theirs"


@on(WRITABLE)
def test_expecting_what_was_deleted_is_a_conflict(maker):
    store = maker.sparse({"a": b"before", "other": b""})
    mine = store.stamp("a")
    store.delete(["a"])
    with pytest.raises(ConflictError):
        store.replace("a", b"mine", expected=mine.version)
    assert {*store.listing()} == {"other"}


@on(WRITABLE)
def test_no_update_is_lost_between_threads(maker):
    store = maker.sparse({"count": b"0"})

    def increment():
        for _ in range(5):
            while True:
                with store.lock("count"):
                    before = store.stamp("count")
                    count = int(content_of(store, "count"))
                    try:
                        store.replace("count", str(count + 1).encode(), expected=before.version)
                        break
                    except ConflictError:
                        continue

    threads = [threading.Thread(target=increment) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert content_of(store, "count") == b"15"


@on((*WRITABLE, "http"))
def test_a_reader_refuses_an_object_that_has_taken_the_place_of_its_own(maker, request):
    store = maker.single(CONTENT)
    version = store.stamp("").version
    assert read(store, ("", 0, 9), expected=version) == [CONTENT[:9]]
    if maker.kind == "http":
        request.getfixturevalue("http").objects["array.b2frame"] = CONTENT[::-1]
    else:
        store.replace("", CONTENT[::-1])
    store.close()  # a local file that stays open still has the old bytes
    with pytest.raises(ConflictError, match=r"changed since it was opened; call refresh\(\)"):
        read(store, ("", 0, 9), expected=version)


@on(WRITABLE)
def test_deleting_takes_only_what_exists(maker):
    store = maker.sparse({"a": b"1", "b": b"2", "c": b"3"})
    store.delete(["a", "nothing", "c"])
    assert {*store.listing()} == {"b"}


@on(WRITABLE)
def test_the_only_object_can_be_deleted(maker):
    store = maker.single(CONTENT)
    store.delete([""])
    with pytest.raises(FileNotFoundError):
        store.stamp("")


# ---- versions ----

versions = st.builds(
    Version, st.text("@#:1a", max_size=3), st.text("@#:1a", max_size=3), st.binary(max_size=2), st.integers(0, 2)
)


@given(versions, versions)
def test_versions_are_equal_if_all_their_parts_are(a, b):
    parts = [(each.tag, each.state, each.known, each.stop) for each in (a, b)]
    assert (a == b) == (parts[0] == parts[1])
    assert len({a, b}) == len({*parts})
    assert {a: 1}[pickle.loads(pickle.dumps(a))] == 1


def test_a_version_cannot_be_changed():
    with pytest.raises(AttributeError):
        Version("7").tag = "8"
    with pytest.raises(AttributeError):
        Version("7").other = "8"


def test_the_text_of_a_version_is_the_one_in_stored_notes_and_digests():
    assert str(Version("7", "12:9", b"last", 40)) == f"{Version('7', '12:9')}" == "7@12:9"
    assert str(Version('"tag"')) == '"tag"'


@on(WRITABLE)
def test_the_version_is_the_same_as_long_as_nobody_writes(maker):
    store = maker.single(b"as it is")
    first, second = store.stamp("").version, store.stamp("").version
    assert first == second
    assert hash(first) == hash(second)
    assert pickle.loads(pickle.dumps(first)) == first


@on(APPENDABLE)
def test_the_tag_stays_while_an_object_is_appended_to_and_goes_when_it_is_replaced(maker):
    store = maker.single(b"0123456789")
    before = store.stamp("").version
    store.append("", 10, b"more")
    appended = store.stamp("").version
    patched = store.patch("", 0, b"ab").version
    replaced = store.replace("", b"another one").version
    assert before.tag == appended.tag == patched.tag != replaced.tag
    assert len({before, appended, replaced}) == 3
    for version in (before, appended, patched):
        with pytest.raises(ConflictError):
            store.read([Span("", 0, 1)], expected=version)


@on(APPENDABLE)
def test_appending_cuts_first_and_keeps_the_tag(maker):
    store = maker.single(b"committed, aborted and longer")
    version = store.stamp("").version
    store.append("", 10, [b" and", b" more"])
    assert content_of(store, "") == b"committed, and more"
    assert store.stamp("").version != version
    assert read(store, ("", 0, 9), expected=version) == [b"committed"]


@on(APPENDABLE)
def test_patching_overwrites_bytes_in_place(maker):
    store = maker.single(b"0123456789")
    version = store.stamp("").version
    store.patch("", 8, b"ab")
    assert content_of(store, "") == b"01234567ab"
    assert read(store, ("", 0, 2), expected=version) == [b"01"]


@on(APPENDABLE)
def test_nothing_is_written_beyond_the_end(maker):
    store = maker.single(b"0123456789")
    with pytest.raises(FormatError, match="expected at least 11 bytes, found 10"):
        store.append("", 11, b"x")
    with pytest.raises(FormatError, match="expected at least 11 bytes, found 10"):
        store.patch("", 9, b"xy")
    assert content_of(store, "") == b"0123456789"


@on(APPENDABLE)
def test_changing_what_does_not_exist_is_an_error(maker):
    store = maker.sparse({"other": b""})
    with pytest.raises(FileNotFoundError):
        store.append("a", 0, b"x")
    with pytest.raises(FileNotFoundError):
        store.patch("a", 0, b"x")


@on([kind for kind in ALL if kind not in APPENDABLE])
def test_other_stores_say_that_they_change_nothing_in_place(maker):
    store = maker.single(CONTENT)
    assert not store.can.append
    with pytest.raises(UnsupportedError, match="can be replaced, but not changed"):
        store.append("", 0, b"x")
    with pytest.raises(UnsupportedError, match="can be replaced, but not changed"):
        store.patch("", 0, b"x")


@on(("http", "zip", "simplecache"))
def test_a_store_for_reading_refuses_to_write(maker):
    store = maker.single(CONTENT)
    assert not store.can.write
    for write in (
        lambda: store.create("new", b"x"),
        lambda: store.replace("", b"x"),
        lambda: store.delete([""]),
    ):
        with pytest.raises(ReadOnlyError, match="can only be read"):
            write()
    assert read(store, ("", 0, 9)) == [CONTENT[:9]]


@on(ALL)
def test_the_guarantee_is_named(maker):
    expected = {
        "local": "lock",
        "memory": "lock",
        "shared": "lock",
        **dict.fromkeys(CLOUDS, "compare-and-swap"),
    }
    assert maker.single(CONTENT).can.guarantee == expected.get(maker.kind, "read only")


# ---- opening ----


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("array.b2nd", LocalStore),
        ("file:///tmp/array.b2nd", LocalStore),
        ("/tmp/a::b.b2nd", LocalStore),
        ("C:\\data\\array.b2nd", LocalStore),
        ("memory://x", SharedMemoryStore),
        ("s3://bucket/x", S3Store),
        ("https://127.0.0.1/x", HttpStore),
        ("zip://x::/tmp/archive.zip", FsspecStore),
        ("simplecache::s3://bucket/x", CachingStore),
    ],
)
def test_the_url_decides_the_kind_of_store(url, kind):
    pytest.importorskip("s3fs")
    assert type(open_store(url)) is kind


def test_a_path_is_local_whatever_it_looks_like(tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    for path in (tmp_path / "file", str(tmp_path / "file"), f"file://{tmp_path}/file"):
        assert read(open_store(path), ("", 0, 9)) == [CONTENT[:9]]
        assert open_store(path).url == str(tmp_path / "file")


def test_a_slash_at_the_end_says_that_it_is_a_prefix(tmp_path):
    for url in (f"{tmp_path}/", "memory://x/y/", "https://127.0.0.1/x/?signature=1"):
        store = open_store(url)
        assert store.is_prefix is True
        assert pickle.loads(pickle.dumps(store)).is_prefix is True
    assert open_store("memory://x/y").is_prefix is None


def test_an_unknown_protocol_is_said_in_one_line():
    with pytest.raises(UnsupportedError, match=r"^gopher://x: fsspec knows no protocol 'gopher'$"):
        open_store("gopher://x")


def test_a_missing_package_is_named(monkeypatch):
    from fsspec.registry import known_implementations

    monkeypatch.setitem(
        known_implementations, "absent", {"class": "absent_fs.AbsentFileSystem", "err": "Install absent-fs"}
    )
    with pytest.raises(UnsupportedError, match=r"^absent://x: a package is not installed: Install absent-fs$"):
        open_store("absent://x")
    with pytest.raises(UnsupportedError, match="Install absent-fs"):
        open_store("simplecache::absent://x")


def test_local_paths_leave_fsspec_alone(tmp_path):
    import subprocess
    import sys

    script = f"""
import sys
from b2array.store.open import open_store
from b2array.store.spans import Span
store = open_store({str(tmp_path / "file")!r})
store.create("", b"0123456789")
assert bytes(store.read([Span("", 2, 4)])[0]) == b"23"
assert "fsspec" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=__file__.rpartition("tests")[0])
