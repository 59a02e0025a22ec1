"""One commit by many workers: each puts chunks where nothing refers to them yet, and one process commits all.

A `Job` says where the chunks of a region go, and is sent to the workers. What they have put is noted in a
journal beside the chunks, so that a write that was interrupted can go on, and so that its files are known for what they
are.

job          the write, as it is sent to the workers
distributed  put chunks, and commit them
pending      what killed writers leave behind
"""
