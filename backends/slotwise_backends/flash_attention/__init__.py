"""`flash_attention`: the FlashAttention library, version 2, 3 or 4.

capabilities    what is claimed, and the options; imports no torch
backend         the contract's methods
work            what one call of the library computes, in our words
version_2/3/4   the only files that know that version's functions; each translates `work` once
choice          which version runs
"""
