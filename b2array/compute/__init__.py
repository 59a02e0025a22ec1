"""Computations on arrays: reductions, operators and views, which load only the items that they need.

mapping     positions along the axes of a view -> positions along the axes of the array
reductions  `sum`, `mean`, `argmin`, ..., `nansum`, ...: workers compute a state of each piece; the states are combined;
            methods of `Readable`, and functions of `b2array` that ignore NaN
operators   `+`, `==`, `-a`, ...: the same results as on `a[...]`, if that fits into memory
readable    `Readable`: the methods that read arrays and views; `Indexer`: the type of `oindex` and `vindex`
"""
