"""Where format meets store: one committed state is read, the next one is written.

snapshot     one committed state in a store
fetch        chunks and blocks wanted -> bytes, compared with their checksums
cache        decoded blocks that the process keeps
read         a selection of items, from the blocks of chunks
write        the values of a selection, into new chunks
staging      new chunks, where no index refers to them yet
transaction  a commit in the making, on top of a snapshot
schunk       the handle: state, transactions, retries
edits        changes to the sequence of chunks
attributes   the mapping of attributes
resize       resize, append, insert, delete
distributed  one commit by many workers
pending      what killed writers leave behind
"""
