"""`cpu` attention: native kernels in C, loaded with ctypes.

capabilities    what is claimed; whether the library was built; imports no torch
backend         the contract's methods
native          the library and its argument records
kernels/        the C sources: plain C interface, no Python or torch headers; `backends/build_native.py` compiles them
"""
