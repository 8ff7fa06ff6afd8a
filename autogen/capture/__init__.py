"""Turn the graphs that Dynamo and AOTAutograd capture of a loss into the joint graphs that lowering reads.

`joint` turns AOTAutograd's graph into a `JointGraph` for lowering; what hands frames to Dynamo is in `dispatch`.
"""
