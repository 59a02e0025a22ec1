"""Bytes under names: files, objects, memory. The package knows no format.

open           the store for a URL
file_systems   file systems that callers pass, and file systems in forked processes
open_file      files that callers have opened
base           `Store`, the interface of all stores; versions, conflicts, retries
memory         objects in this process
local_store    files and directories
endings        endings of names: locks, and files of commits under way
descriptors    a limited number of files that stay open between reads
disk           calls of the operating system for local files
forces         forcing writes to the disk, one by one or together
links          refusing symbolic links and hard links
locks          the lock files of local frames
remote         everything else that fsspec reaches: archives, caches, other protocols
http           HTTP servers
cloud          object stores with conditional requests
s3             requests to S3
gcs            requests to Google Cloud Storage
azure          requests to Azure Blob Storage
obstore        requests to all three through obstore, for users of its file systems
ranges         reads from clouds and HTTP servers through obstore, in place of the usual client
disk_cache     the cache on disk that the processes of a user share: records with checksums, and their limit
through        reads of stores on servers through that cache
shared_memory  `memory://`
upload         large objects in parts
spans          merging byte ranges that are close together
spool          new bytes before their commit
atomic         files that are made elsewhere and renamed; checks of what they may replace
secrets        keeping passwords and keys out of messages

Two packages use the stores: `frame` reads spans of chunks. `commit` publishes whole objects with ``create`` and
``replace``, renames files to their place with ``adopt``, and extends files and in-memory objects with ``append`` and
``patch``.
"""
