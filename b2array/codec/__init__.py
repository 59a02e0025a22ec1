"""One chunk <-> its items, in memory: no I/O, no frame.

decode    chunk -> items: all, some blocks, or a few items of each block
encode    items -> chunk
chunk     the head of a chunk, and its bytes as far as they are in memory
header    the chunk header as a table of fields; ids of codecs and filters
cparams   `CParams`, how chunks are compressed
interop   parameters with which the C library would read frames wrongly
choice    the filters that suit the data of a chunk
rounding  floats with fewer bits, within the error that the user allows
cblosc    calls C-Blosc 1: many blocks in one call
streams   the streams in a block; runs, which C-Blosc 1 does not know
codecs    streams <-> payloads, codec by codec; registered codecs
plugins   codecs that the Blosc project numbers but does not build in: `zfp`, `jpeg2000`, `ndlz`
filters   prepare blocks for a codec, and undo that; registered filters
splice    replaces blocks of a chunk, and copies the streams of the others
lazy      chunks without their data, as the C library makes them

To decode, `decode` parses the head, checks that the streams can hold the sizes that they claim, and makes a plan: which
blocks `cblosc` decodes together, which `codecs` decodes one by one, and which filters are left to undo. To encode,
`encode` looks whether the data repeat one item. If not, `filters`, or C-Blosc 1 itself, prepares the blocks, `cblosc`
or `codecs` compresses them, and `encode` joins head and blocks.
"""
