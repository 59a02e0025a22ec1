"""Bytes under names: files, objects, memory. The package knows no format.

open           which store a URL means
file_systems   file systems that callers give, and file systems in forked processes
open_file      files that callers have opened
base           Store, what every store can do; versions, conflicts, retries
memory         objects in this process
local          files and directories
endings        endings of names: locks, and what waits for a commit
descriptors    which files stay open between reads, of the few that systems allow
disk           calls of the operating system for local files
forces         forcing writes to the disk, one by one or together
links          symbolic links and hard links, which lead nowhere unasked
locks          the lock files of local frames
remote         whatever fsspec reaches: object stores, archives, caches
http           HTTP servers, whose answers are checked
cloud          object stores that compare while they write: commits by conditional requests
s3             their requests to S3
gcs            ... to Google Cloud Storage
azure          ... to Azure Blob Storage
obstore        ... to all three through obstore, and nobody else
ranges         reads of these and of HTTP servers through obstore, in place of the usual client
shared_memory  memory://
upload         large objects in parts
spans          byte ranges worth reading together
spool          new bytes that wait for their commit
atomic         files that are made elsewhere and renamed; what they may replace
secrets        keeps passwords and keys out of messages

Above it, `frame` reads spans of chunks and `commit` commits frames: ``create`` and ``replace`` publish an object as a
whole, ``adopt`` gives a file that was made next to its name, ``append`` and ``patch`` extend a file on disk or memory.
"""
