"""Capture by torch: Dynamo's graphs of a loss, AOTAutograd's joint graph of each, as the compiler reads it.

`joint` turns AOTAutograd's graph into a `JointGraph` for lowering; what hands frames to Dynamo is in `dispatch`.
"""
