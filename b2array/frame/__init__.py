"""One committed state of a frame, and how it is read. Nothing here changes a store.

To read `a[1:3]`, `read` asks the `cache` for the blocks of each chunk. `fetch` gets the others from the `Snapshot`, and
compares them with their checksums. `read` decodes them, leaves them in the cache, and copies the items.

source       `Source`: what `read` and `fetch` read from, a snapshot or a transaction on top of one
manifest     `Manifest`, `Row`, `Entry`: what a group's manifest says (no I/O)
places       `Place`: the group that a URL leads into, and the name in it
catalog      reads manifests; `Catalog`, what this process last saw of one
snapshot     `Snapshot`: one committed state in a store; `load`, `reload`, `load_member`
log          local groups: what an entry of the manifest's log has still to do; reads members through it
kept         a state that has kept its name, and is still there
listing      the ledger of a group's snapshots, and the members of each
fetch        chunks and blocks wanted -> bytes, compared with their checksums
cache        decoded blocks that the process keeps
read         blocks -> the items of a selection
"""
