"""`flashinfer`: the FlashInfer library, planned once a step, run once a layer.

capabilities    what is claimed, and the options; imports no torch
backend         the contract's methods
planner         a step's rows, parted among FlashInfer's kinds of kernels
pages           rows and their pages as FlashInfer wants them
cache_views     a cache as single slots
wrappers        FlashInfer's objects: made, planned, run; the only file that knows them
"""
