"""Commits single-row transactions at a rate: `HOST PORT RATE SECONDS`; prints a line `NUMBER TIME` after each chunk.

TIME is the time at which the chunk's first transaction was sent, so a lag measured from it is never too short.
"""

from __future__ import annotations

import sys
import time

import pymysql
from pymysql.constants import CLIENT

_CHUNKS_A_SECOND = 100


def main(host: str, port: str, rate: str, seconds: str) -> None:
    """Write for `seconds`. If the server is too slow for the rate, write without pauses."""
    link = pymysql.connect(
        host=host, port=int(port), user="root", autocommit=True, ssl_disabled=True, client_flag=CLIENT.MULTI_STATEMENTS
    )
    in_each, began, number = max(1, int(rate) // _CHUNKS_A_SECOND), time.time(), 0
    with link.cursor() as cursor:
        while number < int(rate) * float(seconds):
            pause = began + number / int(rate) - time.time()
            if pause > 0:
                time.sleep(pause)
            at = time.time()
            cursor.execute(";".join(f"INSERT INTO paced.t VALUES ({n}, {n % 97}, 'paced row')"
                                    for n in range(number, number + in_each)))  # fmt: skip
            while cursor.nextset():
                pass
            number += in_each
            print(number, at, flush=True)
    link.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
