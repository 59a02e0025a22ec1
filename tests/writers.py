"""What the processes of the concurrency tests do."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

import b2array

ROUNDS = 6


def fill_rows(url, rows):
    """Write rows, each in pieces."""
    array = b2array.open(url, "r+")
    for row in rows:
        for start in range(0, array.shape[1], 25):
            array[row, start : start + 25] = row + 1


def raise_counters(url, me):
    """Raise an item of one's own in a chunk that all share, by transactions that are repeated after a conflict."""
    array = b2array.open(url, "r+")
    for _ in range(ROUNDS):
        while True:
            try:
                with array.transaction():
                    array[me] = array[me] + 1
            except b2array.errors.ConflictError:
                array.refresh()
            else:
                break


def append_chunks(url, me):
    """Append chunks that say who made them."""
    held = b2array.open_schunk(url, "r+")
    for n in range(ROUNDS):
        held.append_data(np.array([me, n], "i4"))


def set_attributes(url, me):
    """Set attributes of one's own."""
    array = b2array.open(url, "r+")
    for n in range(4):
        array.attrs[f"{me}.{n}"] = n


def watch(url):
    """Open again and again while the others write: all items of a state are equal, and states only go forward."""
    last = 0
    while last < ROUNDS * 4:
        items = b2array.open(url)[...]
        if items.min() != items.max() or items[0] < last:
            return items.tolist()
        last = int(items[0])
    return last


def step_together(url, rounds):
    """Write all items of all chunks, in one commit each time."""
    array = b2array.open(url, "r+")
    for n in range(1, rounds + 1):
        array[...] = n


def replace(url, rounds):
    """Put a new array in the place of the old one."""
    for n in range(1, rounds + 1):
        b2array.save(url, np.full(400, n), chunks=100, blocks=100)


def touch(url, rounds):
    """Change single items of an array that others replace."""
    for _ in range(rounds):
        try:
            array = b2array.open(url, "r+")
            array[7] = array[6]
        except b2array.errors.ConflictError:
            continue


def append_rows(url, me):
    """Append rows that say who made them."""
    array = b2array.open(url, "r+")
    for _ in range(ROUNDS):
        array.append(np.full((3, array.shape[1]), me))


def assign_rows(url, me):
    """Write a row of one's own, and an item of the row that is the last one by then."""
    array = b2array.open(url, "r+")
    for n in range(ROUNDS):
        array.refresh()
        array[me] = 100 + n
        array[-1, me] = -1


def note_together(url, me):
    """Set attributes of one's own in transactions, and one that all set."""
    array = b2array.open(url, "r+")
    for n in range(ROUNDS):
        with array.transaction():
            array.attrs.update({f"{me}.first": n, f"{me}.second": n})
        array.attrs["last"] = me


ROWS = 8
"""Rows of the array of `crowd` that stay; rows are appended and taken away behind them."""


def crowd(url, me, rounds, options):
    """Do the work of one of sixteen processes on an array with a column for each; return how many rows it has left.

    By fours they write a column of their own, append rows, make room and take it away again, and read. Items behind
    the first rows are zeros where room was made, else they say who appended them, and which row of theirs it is.
    """
    array = b2array.open(url, "r+", storage_options=options)
    left = 0
    for n in range(1, rounds + 1):
        if me < 4:
            array[:ROWS, me] = n
        elif me < 8:
            array.append(np.full((1 + n % 2, 16), 1000 * me + n))
            left += 1 + n % 2
        elif me < 12:
            left += _resize(array, grow=n % 3 > 0)
        else:
            with suppress(b2array.errors.ConflictError):  # in one object, the state that was opened may be gone
                check_crowd(b2array.open(url, storage_options=options))
    return left


def _resize(array, *, grow):
    """Make room for two rows, or take the last row away if it is empty; return how many rows were added."""
    while True:
        try:
            with array.transaction():
                rows = array.shape[0]
                more = 2 if grow else -1 if rows > ROWS and not array[rows - 1].any() else 0
                array.resize((rows + more, 16))
        except b2array.errors.ConflictError:
            array.refresh()
        else:
            return more


def check_crowd(array):
    """Check one state of the array, which consists of whole commits; return its rows behind the first ones."""
    items = array[...]
    first, rest = items[:ROWS], items[ROWS:]
    assert (first == first[0]).all()
    assert (rest == rest[:, :1]).all()
    for me in range(4, 8):
        mine = rest[rest[:, 0] // 1000 == me, 0] % 1000
        expected = np.repeat(np.arange(1, 1001), 1 + np.arange(1, 1001) % 2)[: len(mine)]
        assert np.array_equal(mine, expected), f"rows of {me}: {mine.tolist()}"
    return rest


def add_row(fork, row):
    """Write a row through a fork: its number on top of the first row."""
    fork[row] = int(fork[0, 0]) + row
    return fork


def join_forks(one, other):
    """Merge a fork into its sibling."""
    one.merge(other)
    return one


def change_group(fork, n):
    """Write a row, make a member and set an attribute through a fork of a group."""
    fork["level"][n] = int(fork["level"][0, 0]) + n
    fork[f"parts/{n}"] = [n]
    fork.attrs[f"worker {n}"] = n
    return fork
