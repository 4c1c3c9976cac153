"""`python -m slotwise`: the command line, where the `slotwise` script is not on the PATH."""

import sys

from slotwise.cli import main

if __name__ == "__main__":
    sys.exit(main())
