"""Whole numbers: how an array is cut into chunks and blocks, and what a key selects of them. No bytes.

selection     a NumPy key -> a product of factors; each has the positions along an axis, or along axes together
index_arrays  the index arrays and masks of a key
partition     how a product is cut along a grid: array -> chunks, chunk -> blocks; `take` and `put` move
              items that index arrays select
tiling        what reads and writes ask for: the chunks of a selection, the steps to read one, the blocks to write
assignment    the value of an assignment, checked and broadcast as NumPy does it
layout        shape, chunks and blocks of one array, and what follows from them
chunking      chunks and blocks chosen where the user names none
advice        which keys chunks and blocks serve badly, and what would serve them
"""
