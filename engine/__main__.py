"""python -m engine."""

import sys

if __name__ == "__main__":
    try:
        from engine.cli.main import main

        sys.exit(main())
    except KeyboardInterrupt:  # while modules are imported, or after the command
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)
