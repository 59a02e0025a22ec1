"""Whole numbers: how an array is cut into chunks and blocks, and what a key selects of them. No bytes.

selection     a NumPy key -> a product of factors; each has the positions along an axis, or along axes together
index_arrays  the index arrays and masks of a key
partition     that product, cut along a grid: array -> chunks, chunk -> blocks; `take` and `put` move the items
tiling        the steps in which the blocks of one chunk are read and copied
assignment    the value of an assignment, converted as NumPy converts it
layout        shape, chunks and blocks of one array, and what follows from them
chunking      chunks and blocks chosen where the user names none
"""
