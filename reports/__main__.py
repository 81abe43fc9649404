"""`python -m reports build`."""

import sys

from reports.cli import main

sys.exit(main())
