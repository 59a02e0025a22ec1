"""One chunk <-> its items, in memory: no I/O, no frame.

decode    chunk -> items: all, some blocks, or a few items of each block
encode    items -> chunk
chunk     the head of a chunk, and the bytes of it that are at hand
header    the chunk header as a table of fields; ids of codecs and filters
cparams   `CParams`, how chunks are compressed
cblosc    C-Blosc 1 as the engine: many blocks in one call
streams   the streams in a block; runs, which C-Blosc 1 does not know
codecs    streams <-> payloads, codec by codec; registered codecs
filters   blocks before they are compressed; registered filters
splice    other blocks into a chunk; the streams of the rest are copied
lazy      chunks without their data, as the C library hands them out

To decode, `decode` parses the head, checks that the streams can hold the sizes that they claim, and makes a plan: which
blocks `cblosc` decodes together, which `codecs` decodes one by one, and which filters are left to undo. To encode,
`encode` looks whether the data repeat one item. If not, `filters` prepares the blocks, `cblosc` or `codecs` compresses
them, and `encode` joins head and blocks.
"""
