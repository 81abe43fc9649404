"""`python -m night`, which ci/nightly starts."""

import sys
import traceback

if __name__ == "__main__":
    try:
        from night.command import main
    except ImportError:  # an exit code of 1 would blame the machine
        traceback.print_exc()
        sys.exit(2)
    sys.exit(main(sys.argv[1:]))
