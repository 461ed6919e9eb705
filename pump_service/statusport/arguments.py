"""Options of the commands that serve a status port."""

from __future__ import annotations

import argparse

from binlake.rpc import Tls


def add_status_port(parser: argparse.ArgumentParser) -> None:
    """Declare `--status-addr`, and `--status-ssl-ca`, `--status-ssl-cert`, `--status-ssl-key`."""
    parser.add_argument("--status-addr", default="127.0.0.1:10080", help="HOST:PORT of the status port it serves")
    for name, text in (
        ("cert", "certificate of the status port, PEM: it then has TLS"),
        ("key", "key of that certificate"),
        ("ca", "CA that signs callers; if set, callers must show a certificate"),
    ):
        parser.add_argument(f"--status-ssl-{name}", default="", metavar="FILE", help=text)


def build_status_tls(args: argparse.Namespace) -> Tls | None:
    """TLS of the status port; None without files."""
    return Tls.of(args.status_ssl_ca, args.status_ssl_cert, args.status_ssl_key)
