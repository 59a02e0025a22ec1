"""One commit by many workers: each puts chunks where nothing refers to them yet, and one process commits all.

A `Job` says where the chunks of a region go, and is sent to the workers. A journal beside the chunks notes what they
have put. With it an interrupted write can go on, and others can tell what the files are.

distributed  a job; workers put its chunks, and one process commits them
fork         handles for workers, whose writes become part of a transaction
pending      files that no commit refers to yet, or ever will
"""
