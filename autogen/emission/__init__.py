"""Emit the Triton source of a kernel; the entry is `autogen.emission.emit`.

The shell follows from the axes of the kernel; between resident and looped rows, the sizes of the call decide.

| shell         | chosen when                                                     | a program has                      |
|---------------|-----------------------------------------------------------------|------------------------------------|
| flat          | there are no columns                                            | a block of one line of elements    |
| tiled         | there are columns, but nothing is reduced along them            | a tile of rows x columns           |
| rows resident | something is reduced or runs along columns, which fit on chip   | whole rows, loaded once            |
| ... strided   | one of these, with totals and thousands of programs             | such tiles, one after the other    |
| rows looped   | something is reduced along columns that do not fit              | rows, in steps of columns          |
| chunked       | totals have several results, for the last block                 | a chunk of the rows of one result  |
| block         | no other fits, and everything is small                          | everything, a dimension per axis   |
| horizontal    | there are parts, each with a shell of its own                   | the work of a program of one part  |

What fits on chip is `tiler.MAX_RESIDENT` elements, divided by the number of tensors that a program holds per element,
half of that in double precision, and less where rows rather than columns are adjacent in memory.

A template in `templates/` is the skeleton of a module, and `body` prints the statements in its gaps. The text is the
same to the byte for the same loss, in every process.

To add a shell: a template, a subclass of `Shell` (or `Rows`) that names it, says which mask each level has and what an
offset is in the kernel's variables, and fills the template's context; its case in `emit`; its tile sizes in
`autogen.tiling.tiler`; and a case in `bench/kernel_cases.py`.
"""
