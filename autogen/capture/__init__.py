"""Capture by torch: Dynamo's graphs of a loss, AOTAutograd's joint graph of each, as the compiler reads it.

`frames` hands Python frames to Dynamo, `backend` is what Dynamo calls with each graph, `joint` turns AOTAutograd's graph
into a `JointGraph` for lowering.
"""
