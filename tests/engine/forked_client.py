"""The other end of forked_python.py, which loads next to nothing: SOCKET SCRIPT, then the words of `python`.

What is no file, no module of the project and not torch's launcher is left to the Python that runs this.
"""

import json
import os
import signal
import socket
import sys

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

EXTERNAL = "engine.peers.external"
"""Variable by which the client is given a descriptor."""
FORKED = ("engine", "gpu_check", "suites.launcher", "torch.distributed.run", EXTERNAL)

_, where, script, *words = sys.argv
words = words[words[:1] == ["-u"] :]  # what a job says is seen when it ends
is_external = words[:3] == ["-P", "-m", EXTERNAL]
words = words[is_external:]
is_module = words[:1] == ["-m"] and words[1] in FORKED
if not is_module and not "".join(words[:1]).endswith(".py"):
    os.execv(sys.executable, [sys.executable, *words])
desk = socket.socket(socket.AF_UNIX)
desk.connect(where)
folder = os.getcwd()  # noqa: PTH109 (pathlib takes longer to load than all of this)
order = json.dumps({"python": script, "words": words, "folder": folder, "environ": dict(os.environ)}).encode()
descriptors = [0, 1, 2, *([int(words[-1])] if is_external else [])]
socket.send_fds(desk, [len(order).to_bytes(8)], descriptors)
desk.sendall(order)
for number in SIGNALS:
    signal.signal(number, lambda number, _: desk.sendall(bytes([number])))
told = desk.recv(4)
if len(told) < 4:
    sys.exit("The server of forked processes has ended.")
code = int.from_bytes(told, signed=True)
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
