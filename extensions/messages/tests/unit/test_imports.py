"""What a site or a client imports of this extension: the server's half stays away, as in the core."""

from __future__ import annotations

import subprocess
import sys


def test_the_transport_of_sites_and_clients_imports_nothing_of_the_server() -> None:
    code = "import sys, tidemill_messages.transport, tidemill_messages.messenger; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "tidemill_messages.settings" in loaded
    servers = ("tidemill.server", "tidemill_messages.server", "tidemill.config.server")
    assert [each for each in sorted(loaded) if each.startswith(servers)] == []
