"""Turn the graphs that Dynamo and AOTAutograd capture of a loss into the joint graphs that lowering reads.

`joint` turns AOTAutograd's graph into a `JointGraph` for lowering; what hands frames to Dynamo is in `dispatch`.

What torch has decided by then is not decided again: guards, side effects, aliasing, in-place writes (functional by
now), casts of autocast, derivatives, and the decomposition of ops that have no lowering (`lowering.decompositions`).
Relations between sizes are Dynamo's guards. A new kind of node that AOTAutograd may write is a case in `nodes`.
"""
