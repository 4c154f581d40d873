#!/bin/sh
# How cluster.py's mpiexec starts its proxy on a host, in place of ssh:
#     enter_host.sh [options of ssh] NAMESPACE command
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "$host" sh -c "$*"
