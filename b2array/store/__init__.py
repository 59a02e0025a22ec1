"""Bytes under names: files, objects, memory. The package knows no format.

open           which store a URL means
base           Store, what every store can do; versions, conflicts, retries
memory         objects in this process
local          files and directories
disk           what they ask of the operating system
fallback       the same without POSIX
remote         what fsspec reaches: object stores, HTTP, archives, caches
s3             conditional requests of S3
shared_memory  memory://
upload         large objects in parts
spans          byte ranges worth reading together
spool          new bytes that wait for their commit
atomic         files made elsewhere and renamed; what may be replaced
secrets        what no message may show

Above it, `engine` reads spans of chunks and commits frames: ``create`` and ``replace`` publish an object as a whole,
``append`` and ``patch`` extend a local file.
"""
