"""Reads what a group's manifest says: which state of a frame counts, and who needs which bytes. It never writes.

A frame by itself has one state, the one in its place. For a member of a group, the manifest decides. In an object
store, the manifest has a row for each member, which names the revision that counts. On a local disk, the files are the
members, and the manifest lists the steps that are pending: each gives a member the state that a commit has made.

A new field of the manifest belongs in `manifest.Manifest`, and in its `pack` and `unpack`; a new field of each member
in `Row` or in `PendingStep`. `GroupChange.manifest_after` in `commit.group_commit` sets it in a commit.

manifest          `Manifest`, `Row`, `PendingStep`: the contents of a group's manifest (no I/O)
known_manifests   reads manifests; `KnownManifest`, the last manifest that this process has seen
owners            `load`: the state of a frame that counts; the owners `Alone` and `BucketMember`
redo              local groups: reads members; decides by one table what a step still requires; `LocalMember`, an owner
names_of_members  `Members`: names, and the groups that they make; `check_new`
census            lists the members of a group in an object store by its files, where no manifest lists them
local_listing     lists the members of a local group by its files and its pending steps
ledgers           the ledger of a group's snapshots, and the members of each snapshot
intact            states that a frame or its group keeps under a name, and whether their chunks are intact
needs             which states of a frame snapshots of local groups need
group_places      `Place`: the group that a URL leads into, and the name in it
"""
