"""`triton` attention: kernels of our own, for GPUs.

capabilities    what is claimed, and the options; imports no torch
backend         the contract's methods
step            one step's metadata: tensors on the device, tiles of query rows
tiling          sizes of tiles and numbers of splits
launch          arguments of the kernels from a call
attend_kernel   queries against cached keys: prefill, decode, split and not, one kernel
merge_kernel    parts of one result into the whole
write_kernel    K and V into their slots
ahead_of_time   compiles the kernels for GPUs that are not here
"""
