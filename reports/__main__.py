"""`python -m reports build`."""

import sys

try:
    from reports.cli import main

    sys.exit(main())
except KeyboardInterrupt:
    sys.stderr.write("Interrupted.\n")
    sys.exit(130)
