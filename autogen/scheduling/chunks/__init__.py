"""Compute losses of the rows of a matrix product in chunks, so that the product never exists as a whole.

A product that kernels read and that is large (`size`) is taken out of its direction, with all that depends on it.
`rows` finds the row of each value, and `body` writes values anew for the row of a chunk. What is then a value of each
row (its loss, its `logsumexp`) becomes a *table*, one number per row, which the rest of the loss reads as it would any
tensor; so is what is known of a row without its product (a shifted label), stored before. Gradients of products go
straight into the products that autograd makes of them (`matrices`). To everything else all of it is one step of torch's
(`chunk`); the loop is `autogen.runtime.chunks`. To have another step of torch run by rows, such as `topk`: a case in
`Matrices.add`.
"""
