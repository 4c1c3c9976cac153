"""`flashinfer`: the FlashInfer library, planned once a step, run once a layer.

capabilities    what is claimed, and the options; imports no torch
backend         the contract's methods
pages           rows and their pages as FlashInfer wants them
wrappers        FlashInfer's objects: made, planned, run; the only file that knows them
"""
