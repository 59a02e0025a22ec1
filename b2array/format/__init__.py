"""Converts the bytes of frames to values and back, without I/O.

To read a frame, `frame.unpack` parses the header and the trailer (with `metalayers`, `index` and `fingerprint`), and
`state.parse` reads the metalayers. A commit does the reverse: `State` -> `frame.pack` -> bytes.

state            `State`: a frame and its parsed metadata; changes of its shape
frame            header, index and trailer together; packing the trailer
frame_header     the header, described by a table of fields
index            the position of each chunk
metalayers       named metadata in the header and the trailer
b2nd             the array's metalayer <-> its layout
dtypes           types of items <-> their text in a file
strings          text of any length: its type, metalayers and fill value
annotations      the metadata that b2array adds: fill value, dimensions, sizes of blocks, lost chunks
ledger           named states that stay readable: the ledger, and packed states
recent           the list of the last commits, for annotations and manifests
attributes       values of attributes <-> msgpack
summary          the description of an array without its index, for the manifests of groups
checksums        the record behind each chunk
fingerprint      the hash in the trailer
foreign          files without a frame: their real formats
foreign_indexes  indexes of python-blosc2, which become stale when the array changes
"""
