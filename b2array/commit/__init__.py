"""The next state of a frame or of a group: the only package that changes a store.

To write `a[1:3] = x`, the array takes a new `Draft` from `Handle.attempts` and calls `write.write`. That puts the
values into an `OpenChunk`, on top of the old chunk if it is written in part, encodes it, and gives it to
`Draft.store_chunk`, which calls `Staging.put`. `Draft.set_chunk` lets the draft's index refer to it. Inside
``with a.transaction()``, a chunk that is written in part, or is the only one of its write, stays open until
`Draft.flush` encodes it.

The end of the attempt calls `one.commit`, which makes the draft visible. `Draft.freeze` turns it into a value, a
`ChangeSet`, and `changes.rebased` puts that on top of what other writers committed meanwhile. `plan.plan` decides how
the frame gets its next state: it packs header, index and trailer, and does no I/O. `one.publish` carries the plan
out. If another writer was faster, `commit` does all of this again; if that writer changed the same chunks,
`Handle.attempts` yields another draft.

A transaction of a local group calls `entries.commit_entries`, and that calls `one.stage` for each member: the same, up
to the last write. The group then writes its manifest once, with an entry for each member in its log: that is the
commit. `apply.apply_entry` takes the last step of each member, now or, if the writer was killed, when the next one
comes. `b2array.frame.log` decides what that step is, by one table.

In an object store nothing can be renamed. There `many.commit_rows` writes a revision of each member that changed, and
the manifest once: its rows name the revisions that count. A member that is changed by its own URL takes the same road.

For a parallel write, `fork.fork` makes handles for workers. `fork.fork_point` says what the transaction has changed by
then, as a value, a `ForkPoint`. `fork.begin` makes the draft of a fork, which begins there. What comes back is again a
`ChangeSet`. `changes.merged` joins the changes of several forks, `fork.mergeable` compares them with the transaction,
and `fork.take` takes their chunks over. Then the transaction commits like any other.

open_chunk     `OpenChunk`: a chunk that is being changed; encoded at the end
write          the values of a selection -> new chunks
edits          insert, update, delete and reorder chunks; compact a frame, and take it back to a kept state
resize         resize, append, insert, delete along an axis
staging        new chunks, where no index refers to them yet
draft          `Draft`: changes on top of a snapshot, as they collect: a state, and its `Delta` to the base
changes        `ChangeSet`: the same as a value; `applied`, `rebased`, `merged` (no I/O)
pins           what snapshots of local groups need of a frame, and the locks of those who would destroy it
plan           `plan`: every decision of a commit (no I/O)
prepare        what a commit makes before its last step: the plan, objects, copies of chunks
one            one frame: `commit`, `publish`, and `stage` for a group
many           groups in object stores: `commit_rows`, one write of the manifest
manifests      writes manifests
entries        local groups: `commit_entries`, one write of the manifest, whose log names the members
apply          local groups: gives members the states that the log in the manifest has for them
locks          local groups: how writers of one member keep to the order of the group's commits: `writers_lock`
leftovers      removes what writers leave in the places of frames
census         lists the members of a group in an object store by its files
localize       makes a local group of one that was copied from an object store
tables         refuses changes of columns of python-blosc2's tables
copied_states  which states under names a copy of a frame gets
fork_point     `ForkPoint`: a transaction as its forks see it; no I/O
fork           forks for workers, whose changes come back into one commit
pending        tells `vacuum` which members the workers of a fork have made
cursor         what a handle shows: one state, the newest one, or a summary
handle         `Handle`: shows what its cursor says, begins transactions, tries again after conflicts
"""
