"""Three daemons behind HAProxy on this machine, as haproxy.cfg has them.

    python cluster.py check   clients over HTTP and gRPC, while one daemon is drained and one is killed: what each client got
    python cluster.py prefix  tokens per second with and without the header that keeps requests of one prefix together

It needs haproxy, socat and openssl, the packages of requirements.txt, and a `sluiced` with HTTP.
"""

import argparse
import asyncio
import sys

from check import check
from prefix import Workload, prefix
from replicas import Cluster


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["check", "prefix"])
    parser.add_argument("--sluiced", default="sluiced", help="the program")
    parser.add_argument("--clients", type=int, default=500, help="of check")
    parser.add_argument("--prefixes", type=int, default=9, help="of prefix")
    parser.add_argument("--turns", type=int, default=6, help="of prefix: requests with each prefix")
    parser.add_argument("--words", type=int, default=150, help="of prefix: the length of each")
    parser.epilog = "What follows -- are options of sluiced, such as -- --model FILE."
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:split])
    with Cluster(options.sluiced, sys.argv[split + 1 :]) as cluster:
        if options.what == "prefix":
            asyncio.run(prefix(cluster, Workload(options.prefixes, options.turns, options.words)))
            return 0
        is_well = asyncio.run(check(cluster, options.clients))
        if not is_well:
            print(cluster.logs(), file=sys.stderr)
        return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
