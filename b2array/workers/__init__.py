"""One commit by many workers: each puts chunks where nothing refers to them yet, and one process commits all.

A transaction is forked. Its forks are handles that can be pickled; workers write through them. What they have put comes
back as changes, which are merged into the transaction. A journal beside the chunks tells others that somebody still
needs them.

fork     handles for workers, and the merging of their changes
pending  files that no commit refers to yet, or ever will
"""
