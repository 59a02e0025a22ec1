"""The next state of a frame or of a group: the only package that changes a store.

To write `a[1:3] = x`, the array gets a new `Draft` from `Handle.attempts` and calls `write.write`. That function puts
the values into an `OpenChunk`, on top of the old chunk if the write covers only part of it, and encodes the result.
`Draft.store_chunk` passes the bytes to `Staging.put`, and `Draft.set_chunk` makes the draft's index refer to them.
Inside ``with a.transaction()``, a chunk that is written in part, or is the only one of its write, stays open until
`Draft.flush` encodes it.

At the end of the attempt, `frame_commit.commit` makes the draft visible. `Draft.freeze` turns the draft into a value, a
`ChangeSet`, and `changes.rebase_change` puts that on top of the commits of other writers. `plan.plan` decides how the
frame gets its next state: it packs header, index and trailer, and does no I/O. `frame_commit.carry_out` carries out the
plan. If another writer was faster, `commit` repeats all of this; if that writer changed the same chunks,
`Handle.attempts` yields another draft.

The last write of a plan makes the commit visible, and is atomic. In `frame_commit`, it is one of these lines:

* **the call of `patch` in `_append_and_patch`**: in a file, it changes the header, after everything was appended;
* **the call of `write_once` in `carry_out`**: a new file replaces the old one, or in a directory, a new index the old
  one. In an object store, it is a conditional request for the object or the index. `outcomes.write_once` finds out
  whether that has happened, even if the answer of a server was lost;
* **the call of `exchange` in `_commit_new`**, if a new frame on a disk replaces one of the other layout. In an object
  store, both can be in one place: readers find the contiguous one until `_remove_old` deletes it.

A writer that is killed before that write leaves the last commit intact. The next writer cuts off what was appended to a
file. Staged files (``.b2tmp``), and chunks and revisions to which nothing refers, remain until `b2array.vacuum` removes
them. Only where the system cannot exchange two names in one step, `exchange` takes several renames. A writer that is
killed between the first two leaves both frames under names that end with ``.b2tmp``, and nothing in the place; `vacuum`
puts the old one back.

A group commits by `group_commit.commit_group`. It stages the next state of each member where no reader of the group
looks, and then writes the manifest once: **the call of `Medium.write` in `group_commit` is the commit**. Afterwards it
publishes the members: it gives each its new state in the usual place. A new member of a group in an object store is
published before the commit, so that no other frame can take its place; readers of the group do not see it yet.
`on_disk` and `in_bucket` say how each kind of storage does that. A third kind needs:

* a class of `store`, which `store.open` chooses, and whose `can` says what it can do. A frame by itself needs no more;
* a `Medium` beside `Disk` and `Bucket`;
* a `GroupHome` beside `LocalGroup` and `ListedGroup`, which makes the medium, and which `group.listed_group.group_at`
  chooses;
* an `Owner` of members, and what the manifest says of a member, beside `Row` and `PendingStep`;
* snapshots of groups: one more module like `group.snapshots_on_disk` and `group.snapshots_in_bucket`.

Other code assumes that there are two kinds where it asks for `is_local`, `can.local` or the classes `LocalStore`,
`LocalMember`, `BucketMember` and `ListedGroup`.

=============  ==============================================  =======================================================
a group        on a local disk (`on_disk`)                     in an object store (`in_bucket`)
=============  ==============================================  =======================================================
stages         new tails in the members' files; new indexes    chunks under new numbers; the index of each member under
               and frames next to their places                 the name of its revision
commits        replaces the manifest, which lists a pending    replaces the manifest, whose rows name the revisions
               step for each member; a change of one member
               that one call publishes: that call
publishes      takes the steps, then removes them from the     copies each index to its usual name
               manifest
excludes       locks: the manifest's, then the locks of the    no lock (in ``memory://``, the manifest's): the write
other writers  members that changed, moved or were read, in    of the manifest requires the version that was read
               the order of their paths
killed before  tails, which the next writer cuts off, and      objects that no row names, for `vacuum`
the commit     files that no reader sees, for `vacuum`
killed after   pending steps, which the next writer takes      published indexes that are one commit old, which the
the commit     first                                           next commit of the member replaces, or missing ones,
                                                               which `vacuum` publishes; indexes of deleted members,
                                                               which `vacuum` removes
=============  ==============================================  =======================================================

A commit is refused if a member that an explicit transaction has read was changed since. On a disk, a writer by the URL
of a member takes only the lock of that member, not the manifest's. So the commit also locks the members that it has
only read, from this check until the members are published. In an object store, every such writer writes the manifest.

A member of a group in an object store that does not note the group yet is adopted before it is staged: its published
index is replaced by an equal one with the note, so that a writer by its URL commits through the group from then on.

A change of a member by its own URL takes the same route: on a disk, the writer first takes the step that is pending for
the member (`frame_locks`); in an object store, it commits through the group.

For a parallel write, `forks.fork` makes handles for workers. `forks.make_fork_point` describes the changes of the
transaction so far, as a value, a `ForkPoint`. `forks.begin_fork` makes the draft of a fork, which starts from that
point, and a worker returns its changes as a `ChangeSet`. `changes.join_changes` joins the changes of several forks,
`forks.prepare_merge` compares them with the transaction, and `forks.take_over` adds them to it. Then the transaction
commits like any other.

open_chunk        `OpenChunk`: a chunk that is being changed, and is encoded at the end
text_chunk        `TextChunk`: the same for a chunk of text
unwritten         stores the chunks of text that nobody has written, before a commit
write             the values of a selection -> new chunks
edits             inserts, updates, deletes and reorders chunks; compacts a frame; restores a kept state
resize            resizes an array; appends, inserts and deletes along an axis
staging           new chunks, before an index refers to them
draft             `Draft`: collects changes on top of a revision: a state, and its `Delta` to the base
changes           `ChangeSet`: a draft's changes as a value; `apply_change`, `rebase_change`, `join_changes` (no I/O)
bare_chunks       chunks without checksums: finds them, and writes them again
plan              `plan`: every decision of a commit (no I/O)
prepare           prepares a commit for its last step: the plan, objects, copies of chunks
outcomes          `write_once`: writes a whole object, and finds out whether that has happened
frame_commit      one frame: `commit`, `carry_out`, and `stage` for a group
group_commit      a group: `commit_group`, `GroupChange`, `Medium`
on_disk           `Disk`, the medium of local groups
in_bucket         `Bucket`, the medium of groups in object stores
publication       gives members their committed states in their usual places
snapshot_changes  `SnapshotChanges`: the snapshots that a commit of a group makes, drops and copies
retired           frames that keep states of deleted members for snapshots of a local group
manifest_writes   writes manifests
frame_locks       local frames: `writers_lock`, and the locks for destroying bytes that snapshots may need
leftovers         removes staged and replaced frames; recognizes abandoned directories
localize          turns a group that was copied from an object store into a local group
columns           refuses changes to columns of python-blosc2's tables
copied_states     chooses the named states to copy with a frame
fork_point        `ForkPoint`: a transaction as its forks see it; no I/O
forks             forks for workers, whose changes become part of one commit
journals          tells `vacuum` which chunks the workers of a write still need
cursor            the state that a handle shows: a fixed one, the newest one, or a summary
handle            `Handle`: shows the state of its cursor, begins transactions, retries after conflicts
"""
