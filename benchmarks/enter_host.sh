#!/bin/sh
# The mpiexec of cluster.py starts its proxy on a host by this script, and not by ssh:
#     enter_host.sh [options of ssh] NAMESPACE command
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "$host" sh -c "$*"
