"""Installs everything that Binlake needs below this checkout: `python3 -m deploy.setup [--without-tests]`. Repeatable.

It uses only the standard library, because it runs before anything is installed. Independent parts run in parallel.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from deploy.setup import (
    apicurio,
    axe,
    azurite,
    bytecode,
    chromium,
    compose,
    etcd,
    h2tools,
    jars,
    java,
    kafka,
    mariadb,
    moto,
    mysql,
    packages,
)
from deploy.setup.common import run_installer

Part = tuple[str, Callable[[], str]]
# Java is checked first, so that nothing is downloaded on a machine that cannot run Spark.
_JAVA: Part = ("java", java.check)
_KAFKA: Part = ("kafka", lambda: str(kafka.install()))
_APICURIO: Part = ("apicurio", lambda: str(apicurio.install()))
_MOTO: Part = ("moto", lambda: str(moto.install()))
_AZURITE: Part = ("azurite", lambda: str(azurite.install()[1]))
_ETCD: Part = ("etcd", lambda: str(etcd.install()))
_COMPOSE: Part = ("compose", lambda: " ".join(compose.install()))
_BYTECODE: Part = ("bytecode", bytecode.compile_once)
_MYSQL: Part = ("mysql", lambda: " ".join(mysql.install()))
_NGHTTP2: Part = ("nghttp2", lambda: str(h2tools.install_nghttp2()))
_BROWSER: tuple[Part, ...] = (("chromium", lambda: str(chromium.install())), ("axe", lambda: str(axe.install())))
_CHAINS: tuple[tuple[Part, ...], ...] = (
    (("uv", lambda: str(packages.install_uv())), ("packages", packages.sync)),
    (("jars", lambda: str(jars.install())),),
    (("mariadb", lambda: str(mariadb.install())),),
)


def main(arguments: list[str]) -> int:
    """Install every part. Returns 1 if a part failed, with a line that names it."""
    began = time.monotonic()
    chains = (
        _CHAINS
        if "--without-tests" in arguments
        else (
            (*_CHAINS[0], _BYTECODE),
            *_CHAINS[1:],
            (_ETCD,),
            (_KAFKA,),
            (_APICURIO,),
            (_MOTO,),
            (_AZURITE,),
            (_MYSQL,),
            (_COMPOSE,),
            (_NGHTTP2,),
            _BROWSER,
        )
    )
    failed = _run((_JAVA,)) or _run_in_parallel(chains)
    if failed:
        print(f"setup: not ready: {' and '.join(failed)} failed", file=sys.stderr, flush=True)
        return 1
    print(f"setup: ready; downloads and installations took {time.monotonic() - began:.1f} s", flush=True)
    return 0


def _run_in_parallel(chains: Sequence[Sequence[Part]]) -> list[str]:
    with ThreadPoolExecutor(len(chains)) as pool:
        return [name for failed in pool.map(_run, chains) for name in failed]


def _run(parts: Sequence[Part]) -> list[str]:
    """Run a chain; returns the name of the failed part, if any. It ends the chain, because the next part needs it."""
    return list(islice((name for name, install in parts if run_installer(name, install)), 1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
