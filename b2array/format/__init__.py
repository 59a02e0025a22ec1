"""What a frame says: bytes in, values out, no I/O.

frame        header, index and trailer
metalayers   named metadata
b2nd         the array's metalayer
dtypes       types of items <-> the text that names them
geometry     the layout of the array in a frame
extras       what b2array adds to a frame: its metalayer, attributes, records of checksums
notes        what a frame notes besides its data: sizes, fill value, dimensions
fingerprint  the hash in the trailer
"""
