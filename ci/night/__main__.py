"""`python -m night`, which ci/nightly starts."""

import sys

from night.command import main

sys.exit(main(sys.argv[1:]))
