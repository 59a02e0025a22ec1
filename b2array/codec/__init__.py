"""One chunk <-> its items, in memory: no I/O, no frame.

To decode, `decode` has `header` and `chunk` parse the head of the chunk, and checks that its streams can hold the sizes
that they claim. A plan says which road the blocks take. On most, `cblosc` puts a Blosc1 header in front of the stored
blocks and calls C-Blosc 1 once for many of them; `streams` finds the runs that C-Blosc 1 does not know. `codecs`
decodes what C-Blosc 1 cannot, and `filters` undoes what is left.

To encode, `encode` looks whether the data repeat one item. If not, `filters` prepares the blocks as `cparams` says,
`cblosc` or `codecs` compresses them, and `encode` replaces the runs in them and joins head and blocks to a chunk.

`splice` replaces some blocks of a chunk and copies the streams of the others.

`lazy` makes chunks without their data, as the C library hands them out.
"""
