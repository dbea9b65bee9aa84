"""`tidemill cache run`: the supervisor of a cache, until SIGTERM or SIGINT."""

from __future__ import annotations

import signal
from argparse import Namespace

from tidemill.cli.arguments import Command, Parser, define_log_format
from tidemill_caches.cli.location import cache_directory, define_directory


def define(parser: Parser) -> None:
    """Options of `cache run`."""
    define_directory(parser)
    define_log_format(parser)


def run(args: Namespace) -> int:
    """Run the cache."""
    from tidemill import log
    from tidemill_caches.contents.record import ContentsScan
    from tidemill_caches.engine import directory as places
    from tidemill_caches.engine.supervisor import Supervisor, check_host
    from tidemill_caches.figures.collector import FiguresCollector

    log.to_stderr("INFO", args.log_format)
    check_host()
    directory = cache_directory(args)
    config = places.read_cache(directory)
    places.make_parts(directory)
    with places.locked(directory):
        collector = FiguresCollector(directory)
        supervisor = Supervisor(
            directory,
            config,
            figures_port=collector.port,
            tend=lambda state: collector.step(state.pid, state.port),
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: supervisor.stop())
        scan = ContentsScan(directory, places.data_of(directory, config))
        scan.start()
        try:
            supervisor.run()
        finally:
            scan.stop()
            collector.close()
    return 0


COMMANDS = {"cache run": Command(define, run, "tidemill cache run /scratch/cache", talks=False)}
