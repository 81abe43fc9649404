"""`python -m night`, which ci/nightly starts."""

import sys
import traceback

if __name__ == "__main__":
    try:
        from night.command import main

        code = main(sys.argv[1:])
    except Exception:  # an exit code of 1 would blame the machine
        traceback.print_exc()
        sys.stderr.write("nightly: This is an error of ci/nightly itself: nothing is known of the night.\n")
        code = 2
    sys.exit(code)
