"""Bytes under names: files, objects, memory. Knows no format.

open     URL -> store
base     what every store does, and a store in memory
local    files
remote   anything fsspec reaches
s3       conditional requests of S3
upload   an object sent in parts
spans    ranges worth reading together
spool    bytes on their way into a file
atomic   files made beside the old one and renamed
secrets  what no message may show
"""
