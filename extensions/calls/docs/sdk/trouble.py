"""What calls that fail, hang or kill their process look like; the pool goes on."""

import os
import time

from tidemill import CallError, CallTimeoutError, Executor

with Executor(workers=1, timeout_s=1.0) as pool:
    error = pool.submit(int, "seven").exception()
    print(type(error).__name__, error, "- with the traceback of the worker:", error.__cause__ is not None)
    try:
        pool.submit(time.sleep, 600).result()
    except CallTimeoutError as late:
        print(late)
    try:
        pool.submit(os.abort).result()
    except CallError as died:
        print(str(died).splitlines()[0])
    print(pool.submit(abs, -1).result())
