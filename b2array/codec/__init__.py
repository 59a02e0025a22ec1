"""One chunk <-> its items, in memory: no I/O, no frame.

decode        chunk -> items: all, some blocks, or a few items of each block
encode        items -> chunk
chunk         the head of a chunk, and the bytes of a chunk in memory
chunk_header  the chunk header as a table of fields; ids of codecs and filters
cparams       `CParams`, how chunks are compressed
interop       parameters of frames that the C library would misread
choice        the filters that suit the data of a chunk
rounding      rounds floats to fewer bits, within the error that the user allows
cblosc        calls C-Blosc 1: many blocks in one call
streams       the streams in a block; runs, which C-Blosc 1 does not support
codecs        streams <-> payloads, codec by codec; registered codecs
plugins       registered codecs of the Blosc project that are not built in: `zfp`, `jpeg2000`, `ndlz`
filters       filters that prepare blocks for a codec, and their inverses; registered filters
splice        replaces blocks of a chunk, and copies the streams of the others
text          text of any length <-> msgpack <-> chunks of variable-length blocks
lazy          chunks without data, as the C library makes them

To decode, `decode` parses the head, checks that the streams can hold the sizes that they claim, and makes a plan: which
blocks `cblosc` decodes together, which `codecs` decodes one by one, and which filters are left to undo. To encode,
`encode` checks whether the data repeat one item. If not, `filters`, or C-Blosc 1 itself, prepares the blocks, `cblosc`
or `codecs` compresses them, and `encode` joins head and blocks.
"""
