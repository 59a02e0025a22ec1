"""Computing with arrays: reductions, operators and views, which load no more than they must.

mapping     what a view shows: positions along its axes -> positions along those of the array
reductions  `sum`, `mean`, `argmin`, ..., `nansum`, ...: a state of each piece, in workers -> combined -> finished;
            `Readable` has them as methods, and `b2array` those that ignore NaN as functions
operators   `+`, `==`, `-a`, ...: as if on `a[...]`, if that fits into memory
readable    `Readable`: all that reads arrays and views; `Indexer`: what `oindex`, `vindex` and `chunk_view` are
"""
