#!/bin/sh
# drain.sh REPLICA: takes a replica out of both backends, and returns when its last stream has ended. Then stop sluiced; once it is back,
# `drain.sh --undo REPLICA` puts it in again.
set -eu
socket=${HAPROXY_SOCKET:-/run/haproxy/admin.sock}
state=drain
if [ "${1:-}" = --undo ]; then
    state=ready
    shift
fi
replica=${1:?usage: drain.sh [--undo] REPLICA}

haproxy_says() {
    echo "$1" | socat - "unix-connect:$socket"
}

haproxy_says "show info" >/dev/null

# State first in both, so that neither gets a request while the other is looked at.
for backend in https_replicas grpc_replicas; do
    haproxy_says "set server $backend/$replica state $state" | grep . && exit 1
done
[ "$state" = drain ] || exit 0

while :; do
    # CSV: the fifth column has the current sessions. A statement of its own, so that a HAProxy that is gone is no end of streams.
    stat=$(haproxy_says "show stat")
    sessions=$(echo "$stat" | awk -F, -v name="$replica" '$2 == name { sum += $5 } END { print sum + 0 }')
    [ "$sessions" -gt 0 ] || exit 0
    sleep 0.5
done
