"""`python -m measured_example`, which ci/example starts."""

import sys

from engine.errors import EngineError
from measured_example.command import main

if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except EngineError as error:
        sys.stderr.write(f"example: {error}\n")
        code = 2
    sys.exit(code)
