"""The next state of a frame or of a group: the only package that changes a store.

To write `a[1:3] = x`, the array gets a new `Draft` from `Handle.attempts` and calls `write.write`. That function puts
the values into an `OpenChunk`, on top of the old chunk if the write covers only part of it, and encodes the result.
`Draft.store_chunk` passes the bytes to `Staging.put`, and `Draft.set_chunk` makes the draft's index refer to them.
Inside ``with a.transaction()``, a chunk that is written in part, or is the only one of its write, stays open until
`Draft.flush` encodes it.

At the end of the attempt, `one.commit` makes the draft visible. `Draft.freeze` turns the draft into a value, a
`ChangeSet`, and `changes.rebase_change` puts that on top of the commits of other writers. `plan.plan` decides how the
frame gets its next state: it packs header, index and trailer, and does no I/O. `one.publish` carries out the plan, and
`outcomes.write_once` finds out whether its last write has happened, even if the answer of a server was lost. If another
writer was faster, `commit` repeats all of this; if that writer changed the same chunks, `Handle.attempts` yields
another draft.

The last write of a plan makes the commit visible, and is atomic. In one file, it changes the header, or a new file
replaces the old one; in a directory, a new index replaces the old one. In an object store, it is a conditional request
for the object or the index. A group's commit is the write of its manifest. Only where the system cannot exchange two
names in one step, a new frame of the other layout takes two renames to replace the old one.

A writer that is killed before that write leaves the last commit intact. The next writer cuts off what was appended to a
file. Staged files (``.b2tmp``), and chunks and revisions to which nothing refers, remain until `b2array.vacuum` removes
them.

A transaction of a local group calls `entries.commit_entries`, which calls `one.stage` for each member: the same steps,
except the last write. The group then writes its manifest once, with an entry for each member in its log: that write is
the commit. `apply.apply_entry` takes the last step of each member; if the writer is killed first, the next writer does
so. A table in `b2array.frame.log` determines that step.

An object store cannot rename objects. There `many.commit_rows` writes a revision of each changed member, and then the
manifest once: its rows name the revisions that count. A change of a member by its own URL takes the same route.

For a parallel write, `fork.fork` makes handles for workers. `fork.make_fork_point` describes the changes of the
transaction so far, as a value, a `ForkPoint`. `fork.begin_fork` makes the draft of a fork, which starts from that
point, and a worker returns its changes as a `ChangeSet`. `changes.join_changes` joins the changes of several forks,
`fork.prepare_merge` compares them with the transaction, and `fork.take_over` adds them to it. Then the transaction
commits like any other.

open_chunk     `OpenChunk`: a chunk that is being changed, and is encoded at the end
text_chunk     `TextChunk`: the same for a chunk of text
unwritten      stores the chunks of text that nobody has written, before a commit
write          the values of a selection -> new chunks
edits          inserts, updates, deletes and reorders chunks; compacts a frame; restores a kept state
resize         resizes an array; appends, inserts and deletes along an axis
staging        new chunks, before an index refers to them
draft          `Draft`: collects changes on top of a snapshot: a state, and its `Delta` to the base
changes        `ChangeSet`: the changes of a draft as a value; `apply_change`, `rebase_change`, `join_changes` (no I/O)
pins           states of a frame that snapshots of local groups need, and the locks for destroying any of them
plan           `plan`: every decision of a commit (no I/O)
prepare        prepares a commit for its last step: the plan, objects, copies of chunks
one            one frame: `commit`, `publish`, and `stage` for a group
many           groups in object stores: `commit_rows`, one write of the manifest
outcomes       `write_once`: writes a whole object, and finds out whether that has happened
manifests      writes manifests
entries        local groups: `commit_entries`, one write of the manifest, whose log names the members
apply          local groups: gives members the states that the log in the manifest specifies
locks          local groups: keep writers of one member in order with the group's commits: `writers_lock`
leftovers      removes staged and replaced frames; recognizes abandoned directories
census         lists the members of a group in an object store by its files
localize       turns a group that was copied from an object store into a local group
tables         refuses changes to columns of python-blosc2's tables
copied_states  chooses the named states to copy with a frame
fork_point     `ForkPoint`: a transaction as its forks see it; no I/O
fork           forks for workers, whose changes become part of one commit
pending        tells `vacuum` which chunks the workers of a write still need
cursor         the state that a handle shows: a fixed one, the newest one, or a summary
handle         `Handle`: shows the state of its cursor, begins transactions, retries after conflicts
"""
