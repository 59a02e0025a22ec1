"""One chunk <-> its items, in memory: no I/O, no frame.

header      the chunk header and its numbers
chunk       a chunk's head (block starts, dictionary) and its blocks: decoding
encode      items -> a chunk
cparams     how to compress
codecs      the codecs, stream by stream, and the registry of more
filters     shuffle and its kin, and the registry of more
cblosc      many blocks in one call of C-Blosc
streams     the streams in a block
planes      a few items of each block
lazy        chunks without their data, as the C library hands them out
oneshot     `compress` and `decompress`
"""
