"""A program of its own that reads pieces of files at an origin: `OriginReader` in `verify` starts it.

    LD_PRELOAD=libXrdPosixPreload.so python -I fetching.py

XRootD's preload library lets `open` and `pread` take root:// URLs, with the credential that the environment names; its
client cannot be interrupted, so it runs in a process that can be ended. One line of JSON in, one line of JSON out, with
the bytes of a piece behind it. Standard library alone: nothing else is to be loaded under a preloaded library.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys


def main() -> None:
    """Answer until standard input ends."""
    is_preloaded = hasattr(ctypes.CDLL(None), "XrdPosix_Pread")
    _answer({"ready": is_preloaded})
    descriptor = -1
    for line in sys.stdin:
        url, offset, length = json.loads(line)
        try:
            if url:
                if descriptor >= 0:
                    os.close(descriptor)
                    descriptor = -1
                descriptor = os.open(url, os.O_RDONLY)
                status = os.fstat(descriptor)
                _answer({"size": status.st_size, "changed_s": int(status.st_mtime)})
            else:
                content = b""
                while len(content) < length:
                    piece = os.pread(descriptor, length - len(content), offset + len(content))
                    if not piece:
                        break
                    content += piece
                _answer({"length": len(content)}, content)
        except OSError as error:
            _answer({"error": error.strerror or str(error), "number": error.errno})


def _answer(head: dict[str, object], content: bytes = b"") -> None:
    sys.stdout.buffer.write(json.dumps(head).encode() + b"\n" + content)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
