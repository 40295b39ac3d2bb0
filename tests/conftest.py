"""What all tests share."""

from __future__ import annotations

import signal
import threading

from tests import software_gpu

# A shell's background job starts with SIGINT ignored, and then Python installs no handler of its own; tests
# of Control-C need the one every interactive program has.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Providers of WebGPU read the environment when they are first asked for adapters, by any test.
software_gpu.prepare()
