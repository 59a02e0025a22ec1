"""What a frame says: bytes in, values out, no I/O.

A frame is read upward: `frame.unpack` takes header and trailer apart (`metalayers`, `index`, `fingerprint`), and
`state.parse` reads the rest of what they say. A commit goes the other way: `State` -> `frame.pack` -> bytes.

state        `State`: a frame with everything it says, parsed once; another shape for it
frame        header, index and trailer together; the bytes of the trailer
header       the header, as a table of fields
index        where each chunk is
metalayers   named metadata in header and trailer
b2nd         the array's metalayer <-> its layout
dtypes       types of items <-> the text that names them
annotations  what b2array adds, and the place for more: fill value, dimensions, sizes of blocks, lost chunks
kept         states that keep their names: the ledger, and a state packed small
recent       the list of the last commits, for annotations and manifests
attributes   values of attributes <-> msgpack
summary      what an array says of itself without its index, for the manifests of groups
checksums    the record behind each chunk
fingerprint  the hash in the trailer
foreign      files without a frame: what they are instead
foreign_indexes  indexes of python-blosc2, which changes make stale
"""
