"""The contracts between the core and its slots: what a third party subclasses, and the records that cross the boundary.

Nothing here imports torch or a kernel library; tensors appear in annotations only. `version.py` holds the version of each
contract and what changed in it.
"""
